// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Ops whose unit is a row, the last dimension of their space: scans and sorts.

#include "shapejit/Utils.h"

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace shapejit;

static Type elementTypeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getElementType();
}

/// `over [s0, s1] ins(%x at #map : type) {attributes} -> type, type`
static ParseResult parseRows(OpAsmParser &parser, OperationState &result) {
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps;
  SmallVector<Type> types;
  MappedOperands inputs;
  if (parser.parseKeyword("over") || parseSizes(parser, space) ||
      parseMappedOperands(parser, "ins", /*optional=*/false, inputs, maps))
    return failure();
  if (inputs.operands.size() != 1)
    return parser.emitError(inputs.loc) << "expected one input, got " << inputs.operands.size();
  if (parser.parseOptionalAttrDict(result.attributes) || parser.parseArrow() ||
      parser.parseTypeList(types) ||
      parser.resolveOperands(inputs.operands, inputs.types, inputs.loc, result.operands))
    return failure();
  result.addTypes(types);
  result.addAttribute("space", ShapeAttr::get(parser.getContext(), space));
  result.addAttribute("maps", parser.getBuilder().getArrayAttr(maps));
  return success();
}

static void printRows(OpAsmPrinter &printer, Operation *op, ShapeAttr space, ArrayAttr maps,
                      ArrayRef<StringRef> elided) {
  printer << " over ";
  printSizes(printer, space.getDims());
  printMappedOperands(printer, "ins", op->getOperands(), maps.getValue());
  printer.printNewline();
  printer << "   ";
  printer.printOptionalAttrDict(op->getAttrs(), elided);
  printer << " -> ";
  llvm::interleaveComma(op->getResultTypes(), printer.getStream());
}

/// The input is read at its map, and every result has the rows of the space.
static LogicalResult verifyRows(Operation *op, ShapeAttr space, ArrayAttr maps) {
  ArrayRef<AffineExpr> sizes = space.getDims();
  if (sizes.empty())
    return op->emitOpError("needs a space with a dimension, its rows");
  if (maps.size() != 1)
    return op->emitOpError() << "has " << maps.size() << " maps, expected one, of its input";
  Type input = op->getOperand(0).getType();
  if (failed(verifyEncoded(op, input, "input")) ||
      failed(verifyAccess(op, mapAt(maps, 0), sizes, input, "input")))
    return failure();
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    std::string what = "result " + std::to_string(i);
    if (failed(verifyEncoded(op, result.getType(), what)))
      return failure();
    ArrayRef<AffineExpr> shape = shapeOf(result.getType()).getDims();
    if (shape.size() != sizes.size() || shape.drop_back() != sizes.drop_back())
      return op->emitOpError() << what << " has the type " << result.getType()
                               << ", whose sizes but for the last are not those of the space";
    Type element = elementTypeOf(result);
    if (i == 0 && element != elementTypeOf(op->getOperand(0)))
      return op->emitOpError() << "values hold " << element << " but the input holds "
                               << elementTypeOf(op->getOperand(0));
    if (i == 1 && !element.isInteger(64))
      return op->emitOpError() << "indices hold " << element << ", expected i64";
    if (i == 1 && shape.back() != shapeOf(op->getResult(0).getType()).getDims().back())
      return op->emitOpError("has rows of different lengths as values and as indices");
  }
  return success();
}

//===----------------------------------------------------------------------===//
// ScanOp
//===----------------------------------------------------------------------===//

static constexpr StringLiteral kScans[] = {"add", "mul", "max", "min", "logaddexp"};

ParseResult ScanOp::parse(OpAsmParser &parser, OperationState &result) {
  for (StringRef kind : kScans)
    if (succeeded(parser.parseOptionalKeyword(kind))) {
      result.addAttribute("kind", parser.getBuilder().getStringAttr(kind));
      return parseRows(parser, result);
    }
  return parser.emitError(parser.getCurrentLocation())
         << "expected add, mul, max, min or logaddexp";
}

void ScanOp::print(OpAsmPrinter &printer) {
  printer << " " << getKind();
  printRows(printer, *this, getSpace(), getMaps(), {"kind", "space", "maps"});
}

LogicalResult ScanOp::verify() {
  StringRef kind = getKind();
  if (!llvm::is_contained(kScans, kind))
    return emitOpError() << "has the unknown kind '" << kind
                         << "', expected add, mul, max, min or logaddexp";
  if (failed(verifyRows(*this, getSpace(), getMaps())))
    return failure();
  Type element = elementTypeOf(getInput());
  if (element.isInteger(1))
    return emitOpError() << "cannot combine i1 by '" << kind << "'; cast it to an integer";
  if (kind == "logaddexp" && !isa<FloatType>(element))
    return emitOpError() << "combines floating-point values by 'logaddexp', got " << element;
  if (getIndices() && kind != "max" && kind != "min")
    return emitOpError() << "has indices, which only max and min have, not '" << kind << "'";
  AffineExpr length = shapeOf(getValues().getType()).getDims().back();
  if (length != getSpace().getDims().back())
    return emitOpError() << "has rows of " << text(length) << " elements as its result but runs "
                         << "over " << text(getSpace().getDims().back());
  return success();
}

//===----------------------------------------------------------------------===//
// SortOp
//===----------------------------------------------------------------------===//

ParseResult SortOp::parse(OpAsmParser &parser, OperationState &result) {
  return parseRows(parser, result);
}

void SortOp::print(OpAsmPrinter &printer) {
  printRows(printer, *this, getSpace(), getMaps(), {"space", "maps"});
}

LogicalResult SortOp::verify() {
  if (failed(verifyRows(*this, getSpace(), getMaps())))
    return failure();
  auto head = dyn_cast<AffineConstantExpr>(shapeOf(getValues().getType()).getDims().back());
  auto row = dyn_cast<AffineConstantExpr>(getSpace().getDims().back());
  if (head && row && head.getValue() > row.getValue())
    return emitOpError() << "gives the first " << head.getValue() << " elements of rows of "
                         << row.getValue();
  return success();
}
