// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Symbols, constraints and sizes.

#include "shapejit/Utils.h"

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IntegerSet.h"

using namespace mlir;
using namespace shapejit;

//===----------------------------------------------------------------------===//
// SymbolOp
//===----------------------------------------------------------------------===//

static constexpr StringLiteral kDerivedKinds[] = {"max", "min", "floordiv", "ceildiv", "mod"};

/// The integer fields, in the order in which they are printed.
static constexpr StringLiteral kSymbolFields[] = {"id", "min", "max", "divisor", "opt", "equal_to"};

ParseResult SymbolOp::parse(OpAsmParser &parser, OperationState &result) {
  StringAttr name;
  if (parser.parseSymbolName(name, "sym_name", result.attributes))
    return failure();
  auto parseField = [&]() -> ParseResult {
    SMLoc loc = parser.getCurrentLocation();
    StringRef field;
    int64_t value = 0;
    if (parser.parseKeyword(&field) || parser.parseEqual() || parser.parseInteger(value))
      return failure();
    if (!llvm::is_contained(kSymbolFields, field))
      return parser.emitError(loc) << "unknown field '" << field
                                   << "'; a symbol has id, min, max, divisor, opt, equal_to";
    if (result.attributes.get(field))
      return parser.emitError(loc) << "field '" << field << "' is given twice";
    result.addAttribute(field, parser.getBuilder().getI64IntegerAttr(value));
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces, parseField))
    return failure();
  if (!result.attributes.get("id"))
    return parser.emitError(parser.getNameLoc(), "a symbol needs an id");
  if (failed(parser.parseOptionalEqual()))
    return success();

  StringRef kind;
  SmallVector<AffineExpr> arguments;
  auto parseArgument = [&] { return parseSizeExpr(parser, arguments.emplace_back()); };
  if (parser.parseKeyword(&kind) ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parseArgument))
    return failure();
  unsigned symbols = 0;
  for (AffineExpr e : arguments)
    e.walk([&](AffineExpr part) {
      if (auto symbol = dyn_cast<AffineSymbolExpr>(part))
        symbols = std::max(symbols, symbol.getPosition() + 1);
    });
  Builder &builder = parser.getBuilder();
  result.addAttribute("derived", builder.getStringAttr(kind));
  result.addAttribute(
      "arguments", AffineMapAttr::get(AffineMap::get(0, symbols, arguments, parser.getContext())));
  return success();
}

void SymbolOp::print(OpAsmPrinter &printer) {
  printer << " ";
  printer.printSymbolName(getSymName());
  printer << " {";
  bool first = true;
  for (StringRef field : kSymbolFields) {
    auto value = (*this)->getAttrOfType<IntegerAttr>(field);
    if (!value)
      continue;
    printer << (first ? "" : ", ") << field << " = " << value.getInt();
    first = false;
  }
  printer << "}";
  if (!getDerived())
    return;
  printer << " = " << *getDerived() << "(";
  llvm::interleaveComma(getArguments()->getResults(), printer.getStream(),
                        [&](AffineExpr e) { printer.getStream() << e; });
  printer << ")";
}

/// An optional integer field; the generated accessors are unsigned.
static std::optional<int64_t> signedField(std::optional<uint64_t> value) {
  return value ? std::optional(static_cast<int64_t>(*value)) : std::nullopt;
}

LogicalResult SymbolOp::verify() {
  int64_t id = getId();
  if (id < 0 || id >= ShapeJitDialect::kMaxSymbols)
    return emitOpError() << "has id " << id << ", expected 0.." << ShapeJitDialect::kMaxSymbols - 1;
  int64_t min = signedField(getMin()).value_or(0);
  std::optional<int64_t> max = signedField(getMax());
  if (min < 0)
    return emitOpError() << "has min " << min << "; sizes are not negative";
  if (max && *max < min)
    return emitOpError() << "has the empty range [" << min << ", " << *max << "]";
  int64_t divisor = signedField(getDivisor()).value_or(1);
  if (divisor < 1)
    return emitOpError() << "has divisor " << divisor << ", expected at least 1";
  if (max && (*max / divisor) * divisor < min)
    return emitOpError() << "has no multiple of its divisor " << divisor << " in [" << min << ", "
                         << *max << "]";
  if (std::optional<int64_t> opt = signedField(getOpt()))
    if (*opt < min || (max && *opt > *max) || *opt % divisor)
      return emitOpError() << "has opt " << *opt << ", which is not a legal value of it";
  if (std::optional<int64_t> other = signedField(getEqualTo());
      other && (*other < 0 || *other >= id))
    return emitOpError() << "is equal to s" << *other
                         << "; a symbol is merged into one with a smaller id than its own, " << id;
  if (static_cast<bool>(getDerived()) != static_cast<bool>(getArguments()))
    return emitOpError("needs both `derived` and `arguments`, or neither");
  if (!getDerived())
    return success();
  if (!llvm::is_contained(kDerivedKinds, *getDerived()))
    return emitOpError() << "is derived by '" << *getDerived()
                         << "', expected max, min, floordiv, ceildiv or mod";
  AffineMap arguments = *getArguments();
  if (arguments.getNumDims() != 0 || arguments.getNumResults() != 2)
    return emitOpError() << "is derived from " << arguments.getNumResults()
                         << " expressions, expected 2";
  if (arguments.getNumSymbols() > static_cast<uint64_t>(id))
    return emitOpError() << "is derived from s" << arguments.getNumSymbols() - 1
                         << "; only symbols with a smaller id than its own, " << id
                         << ", are known by then";
  return success();
}

//===----------------------------------------------------------------------===//
// ConstraintOp, SizeOp
//===----------------------------------------------------------------------===//

LogicalResult ConstraintOp::verify() {
  if (getSet().getNumDims() != 0)
    return emitOpError() << "relates symbols only, but its set has " << getSet().getNumDims()
                         << " dimensions";
  return success();
}

LogicalResult SizeOp::verify() {
  if (getExpr().getNumDims() != 0 || getExpr().getNumResults() != 1)
    return emitOpError() << "needs a map of symbols to one expression, got " << text(getExpr());
  return success();
}

OpFoldResult SizeOp::fold(FoldAdaptor) {
  auto constant = dyn_cast<AffineConstantExpr>(getExpr().getResult(0));
  return constant ? Builder(getContext()).getIndexAttr(constant.getValue()) : OpFoldResult();
}
