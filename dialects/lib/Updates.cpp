// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Ops that write into a part of a tensor.

#include "shapejit/Utils.h"

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace shapejit;

static Type updateElement(Value value) {
  return cast<RankedTensorType>(value.getType()).getElementType();
}

//===----------------------------------------------------------------------===//
// ScatterOp
//===----------------------------------------------------------------------===//

ParseResult ScatterOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps;
  MappedOperands source, positions, dest;
  if (parser.parseKeyword("over") || parseSizes(parser, space) ||
      parseMappedOperands(parser, "from", /*optional=*/false, source, maps) ||
      parseMappedOperands(parser, "by", /*optional=*/true, positions, maps) ||
      parseMappedOperands(parser, "into", /*optional=*/false, dest, maps) ||
      parser.parseOptionalAttrDict(result.attributes))
    return failure();
  for (auto [keyword, group] : {std::pair("from", &source), std::pair("into", &dest)})
    if (group->operands.size() != 1)
      return parser.emitError(group->loc) << "expected one operand for '" << keyword << "'";
  for (MappedOperands *group : {&source, &positions, &dest})
    if (parser.resolveOperands(group->operands, group->types, group->loc, result.operands))
      return failure();
  result.addTypes(dest.types[0]);
  result.addAttribute("space", ShapeAttr::get(parser.getContext(), space));
  result.addAttribute("maps", builder.getArrayAttr(maps));
  return success();
}

void ScatterOp::print(OpAsmPrinter &printer) {
  printer << " over ";
  printSizes(printer, getSpace().getDims());
  ArrayRef<Attribute> maps = getMaps().getValue();
  size_t positions = getPositions().size();
  printMappedOperands(printer, "from", getSource(), maps.take_front());
  if (positions)
    printMappedOperands(printer, "by", getPositions(), maps.slice(1, positions));
  printMappedOperands(printer, "into", getDest(), maps.take_back());
  printer.printOptionalAttrDict((*this)->getAttrs(), {"space", "maps"});
}

LogicalResult ScatterOp::verify() {
  ArrayRef<AffineExpr> space = getSpace().getDims();
  if (getMaps().size() != getNumOperands())
    return emitOpError() << "has " << getMaps().size() << " maps, expected one for each of the "
                         << getNumOperands() << " operands";
  unsigned last = getNumOperands() - 1;
  for (unsigned i = 0; i < last; ++i) {
    Value operand = getOperand(i);
    std::string what = i == 0 ? "source" : "position " + std::to_string(i - 1);
    if (failed(verifyEncoded(*this, operand.getType(), what)) ||
        failed(verifyAccess(*this, mapAt(getMaps(), i), space, operand.getType(), what)))
      return failure();
    if (i > 0 && !updateElement(operand).isInteger(64) && !updateElement(operand).isInteger(32))
      return emitOpError() << what << " holds " << updateElement(operand)
                           << ", expected i64 or i32";
  }
  if (updateElement(getSource()) != updateElement(getDest()))
    return emitOpError() << "source holds " << updateElement(getSource()) << " but dest holds "
                         << updateElement(getDest());
  if (getType() != getDest().getType())
    return emitOpError() << "result is " << getType() << " but dest is " << getDest().getType();
  // Positions may have any value: of the indices that depend on them nothing is known.
  SmallVector<AffineExpr> dims(space);
  dims.append(getPositions().size(), getAffineSymbolExpr(0, getContext()));
  return failure(
      failed(verifyEncoded(*this, getDest().getType(), "dest")) ||
      failed(verifyAccess(*this, mapAt(getMaps(), last), dims, getDest().getType(), "dest")));
}
