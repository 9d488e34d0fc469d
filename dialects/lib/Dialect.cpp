// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "shapejit/ShapeJit.h"
#include "shapejit/Utils.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/Interfaces/FoldInterfaces.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace shapejit;

#include "shapejit/ShapeJitDialect.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "shapejit/ShapeJitAttrs.cpp.inc"

namespace {
/// Constants stay in (or move into) bodies, so that a body can be outlined as it is.
struct KeepConstantsInBodies : DialectFoldInterface {
  using DialectFoldInterface::DialectFoldInterface;
  bool shouldMaterializeInto(Region *region) const final {
    return isa<LoopOp, GemmOp, ConvOp, KernelOp>(region->getParentOp());
  }
};
} // namespace

void ShapeJitDialect::initialize() {
  addInterfaces<KeepConstantsInBodies>();
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "shapejit/ShapeJitOps.cpp.inc"
      >();
}

void ShapeJitDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "shapejit/ShapeJitAttrs.cpp.inc"
      >();
}

Operation *ShapeJitDialect::materializeConstant(OpBuilder &builder, Attribute value, Type type,
                                                Location loc) {
  return arith::ConstantOp::materialize(builder, value, type, loc);
}

//===----------------------------------------------------------------------===//
// Sizes in brackets
//===----------------------------------------------------------------------===//

/// The names s0, s1, ... under which symbols are parsed.
static SmallVector<std::pair<StringRef, AffineExpr>> symbolNames(MLIRContext *context) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (unsigned i = 0; i < ShapeJitDialect::kMaxSymbols; ++i)
      all.push_back("s" + std::to_string(i));
    return all;
  }();
  SmallVector<std::pair<StringRef, AffineExpr>> symbols;
  for (auto [i, name] : llvm::enumerate(names))
    symbols.emplace_back(name, getAffineSymbolExpr(i, context));
  return symbols;
}

ParseResult shapejit::parseSizeExpr(AsmParser &parser, AffineExpr &expr) {
  auto symbols = symbolNames(parser.getContext());
  return parser.parseAffineExpr(symbols, expr);
}

ParseResult shapejit::parseSizes(AsmParser &parser, SmallVectorImpl<AffineExpr> &sizes) {
  auto symbols = symbolNames(parser.getContext());
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&]() -> ParseResult {
    return parser.parseAffineExpr(symbols, sizes.emplace_back());
  });
}

void shapejit::printSizes(AsmPrinter &printer, ArrayRef<AffineExpr> sizes) {
  printer << "[";
  llvm::interleaveComma(sizes, printer.getStream(),
                        [&](AffineExpr expr) { printer.getStream() << expr; });
  printer << "]";
}

//===----------------------------------------------------------------------===//
// ShapeAttr
//===----------------------------------------------------------------------===//

Attribute ShapeAttr::parse(AsmParser &parser, Type) {
  SmallVector<AffineExpr> dims;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parseSizes(parser, dims) || parser.parseGreater())
    return {};
  return parser.getChecked<ShapeAttr>(loc, parser.getContext(), dims);
}

void ShapeAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printSizes(printer, getDims());
  printer << ">";
}

LogicalResult ShapeAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                ArrayRef<AffineExpr> dims) {
  for (auto [i, expr] : llvm::enumerate(dims)) {
    if (auto constant = dyn_cast<AffineConstantExpr>(expr); constant && constant.getValue() < 0)
      return emitError() << "size " << i << " is negative: " << constant.getValue();
    bool hasDim = false;
    expr.walk([&](AffineExpr e) { hasDim |= isa<AffineDimExpr>(e); });
    if (hasDim)
      return emitError() << "size " << i << " must be an expression of symbols, got " << text(expr);
  }
  return success();
}

LogicalResult ShapeAttr::verifyEncoding(ArrayRef<int64_t> shape, Type,
                                        function_ref<InFlightDiagnostic()> emitError) const {
  if (shape.size() != getDims().size())
    return emitError() << "symbolic shape has rank " << getDims().size()
                       << " but the tensor has rank " << shape.size();
  for (auto [i, size, expr] : llvm::enumerate(shape, getDims())) {
    auto constant = dyn_cast<AffineConstantExpr>(expr);
    if (constant && size != constant.getValue()) {
      auto diag = emitError() << "dimension " << i << " is ";
      if (ShapedType::isDynamic(size))
        diag << "dynamic";
      else
        diag << size;
      return diag << " but its symbolic size is " << constant.getValue();
    }
    if (!constant && !ShapedType::isDynamic(size))
      return emitError() << "dimension " << i << " is " << size << " but its symbolic size is "
                         << text(expr) << "; a size that is not constant needs a dynamic dimension";
  }
  return success();
}

//===----------------------------------------------------------------------===//
// BufferAttr
//===----------------------------------------------------------------------===//

Attribute BufferAttr::parse(AsmParser &parser, Type) {
  StringRef space;
  int64_t index = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseKeyword(&space) || parser.parseInteger(index) ||
      parser.parseGreater())
    return {};
  return parser.getChecked<BufferAttr>(loc, parser.getContext(), space, index);
}

void BufferAttr::print(AsmPrinter &printer) const {
  printer << "<" << getSpace() << " " << getIndex() << ">";
}

LogicalResult BufferAttr::verify(function_ref<InFlightDiagnostic()> emitError, StringRef space,
                                 int64_t index) {
  if (space != "arena" && space != "output" && space != "input")
    return emitError() << "a buffer is in `arena`, `output` or `input`, got `" << space << "`";
  if (index < 0)
    return emitError() << "buffer index must not be negative, got " << index;
  return success();
}

//===----------------------------------------------------------------------===//
// BucketAttr
//===----------------------------------------------------------------------===//

Attribute BucketAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> lower, upper;
  std::string variant, reason;
  auto parseLower = [&] { return parser.parseInteger(lower.emplace_back()); };
  auto parseUpper = [&]() -> ParseResult {
    if (succeeded(parser.parseOptionalQuestion())) {
      upper.push_back(kUnbounded);
      return success();
    }
    return parser.parseInteger(upper.emplace_back());
  };
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseLower) ||
      parser.parseComma() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseUpper) ||
      parser.parseComma() || parser.parseString(&variant) || parser.parseComma() ||
      parser.parseString(&reason) || parser.parseGreater())
    return {};
  return parser.getChecked<BucketAttr>(loc, parser.getContext(), lower, upper, variant, reason);
}

void BucketAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getLower(), printer.getStream());
  printer << "], [";
  llvm::interleaveComma(getUpper(), printer.getStream(), [&](int64_t upper) {
    if (upper == kUnbounded)
      printer << "?";
    else
      printer << upper;
  });
  printer << "], ";
  printer.printString(getVariant());
  printer << ", ";
  printer.printString(getReason());
  printer << ">";
}

LogicalResult BucketAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                 ArrayRef<int64_t> lower, ArrayRef<int64_t> upper,
                                 StringRef variant, StringRef) {
  if (lower.size() != upper.size())
    return emitError() << "a bucket has a lower corner of rank " << lower.size()
                       << " but an upper one of rank " << upper.size();
  for (auto [i, low, high] : llvm::enumerate(lower, upper)) {
    if (low < 0)
      return emitError() << "a bucket starts at " << low << " on axis " << i
                         << "; sizes are not negative";
    if (low > high)
      return emitError() << "a bucket is empty on axis " << i << ": " << low << " to " << high;
  }
  if (variant.empty())
    return emitError() << "a bucket names the variant that serves it";
  return success();
}
