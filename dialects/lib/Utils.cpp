// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "shapejit/Utils.h"

#include "mlir/IR/AffineExpr.h"
#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"

#include <algorithm>

using namespace mlir;
using namespace shapejit;

ParseResult shapejit::parseMappedOperands(OpAsmParser &parser, StringRef keyword, bool optional,
                                          MappedOperands &group, SmallVectorImpl<Attribute> &maps) {
  group.loc = parser.getCurrentLocation();
  if (optional) {
    if (failed(parser.parseOptionalKeyword(keyword)))
      return success();
  } else if (parser.parseKeyword(keyword)) {
    return failure();
  }
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, [&]() -> ParseResult {
    AffineMapAttr map;
    if (parser.parseOperand(group.operands.emplace_back()) || parser.parseKeyword("at") ||
        parser.parseAttribute(map) || parser.parseColonType(group.types.emplace_back()))
      return failure();
    maps.push_back(map);
    return success();
  });
}

void shapejit::printMappedOperands(OpAsmPrinter &printer, StringRef keyword, ValueRange operands,
                                   ArrayRef<Attribute> maps) {
  if (operands.empty())
    return;
  printer.printNewline();
  printer << "    " << keyword << "(";
  llvm::interleaveComma(llvm::zip(operands, maps), printer.getStream(), [&](auto pair) {
    auto [operand, map] = pair;
    printer << operand << " at " << map << " : " << operand.getType();
  });
  printer << ")";
}

ShapeAttr shapejit::shapeOf(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor ? dyn_cast_or_null<ShapeAttr>(tensor.getEncoding()) : ShapeAttr();
}

LogicalResult shapejit::verifyEncoded(Operation *op, Type type, const Twine &what) {
  if (shapeOf(type))
    return success();
  return op->emitOpError() << what << " has type " << type
                           << ", which carries no symbolic shape; every ranked tensor of a "
                              "shapejit op has a #shapejit.shape encoding";
}

std::optional<Bounds> shapejit::constantBounds(AffineExpr expr, ArrayRef<AffineExpr> dimSizes) {
  if (auto constant = dyn_cast<AffineConstantExpr>(expr))
    return Bounds{constant.getValue(), constant.getValue()};
  if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
    auto size = dyn_cast<AffineConstantExpr>(dimSizes[dim.getPosition()]);
    if (!size || size.getValue() == 0)
      return std::nullopt;
    return Bounds{0, size.getValue() - 1};
  }
  auto binary = dyn_cast<AffineBinaryOpExpr>(expr);
  if (!binary)
    return std::nullopt;
  auto rhsConstant = dyn_cast<AffineConstantExpr>(binary.getRHS());
  if (expr.getKind() == AffineExprKind::Mod && rhsConstant && rhsConstant.getValue() > 0) {
    auto lhs = constantBounds(binary.getLHS(), dimSizes);
    int64_t n = rhsConstant.getValue();
    if (lhs && lhs->lower >= 0 && lhs->upper < n)
      return lhs;
    return Bounds{0, n - 1};
  }
  auto lhs = constantBounds(binary.getLHS(), dimSizes);
  auto rhs = constantBounds(binary.getRHS(), dimSizes);
  if (!lhs || !rhs)
    return std::nullopt;
  switch (expr.getKind()) {
  case AffineExprKind::Add:
    return Bounds{lhs->lower + rhs->lower, lhs->upper + rhs->upper};
  case AffineExprKind::Mul: {
    auto corners = {lhs->lower * rhs->lower, lhs->lower * rhs->upper, lhs->upper * rhs->lower,
                    lhs->upper * rhs->upper};
    return Bounds{std::min(corners), std::max(corners)};
  }
  case AffineExprKind::FloorDiv:
    if (!rhsConstant || rhsConstant.getValue() <= 0)
      return std::nullopt;
    return Bounds{llvm::divideFloorSigned(lhs->lower, rhsConstant.getValue()),
                  llvm::divideFloorSigned(lhs->upper, rhsConstant.getValue())};
  default:
    return std::nullopt;
  }
}

LogicalResult shapejit::verifyAccess(Operation *op, AffineMap map, ArrayRef<AffineExpr> dimSizes,
                                     Type tensor, const Twine &what) {
  auto type = cast<RankedTensorType>(tensor);
  if (map.getNumDims() != dimSizes.size())
    return op->emitOpError() << what << ": the map has " << map.getNumDims()
                             << " dimensions, expected " << dimSizes.size();
  if (map.getNumResults() != type.getRank())
    return op->emitOpError() << what << ": the map has " << map.getNumResults()
                             << " results but the tensor has rank " << type.getRank();
  if (map.getNumSymbols() > ShapeJitDialect::kMaxSymbols)
    return op->emitOpError() << what << ": the map has " << map.getNumSymbols()
                             << " symbols, the limit is " << ShapeJitDialect::kMaxSymbols;
  for (AffineExpr size : dimSizes)
    if (auto constant = dyn_cast<AffineConstantExpr>(size); constant && constant.getValue() == 0)
      return success(); // an empty space reads nothing
  for (auto [i, expr] : llvm::enumerate(map.getResults())) {
    auto bounds = constantBounds(expr, dimSizes);
    if (!bounds)
      continue;
    if (bounds->lower < 0 || (!type.isDynamicDim(i) && bounds->upper >= type.getDimSize(i))) {
      auto diag = op->emitOpError() << what << ": index " << i << " (" << text(expr) << ") spans ["
                                    << bounds->lower << ", " << bounds->upper << "], outside of ";
      if (type.isDynamicDim(i))
        return diag << "dimension " << i << ", which starts at 0";
      return diag << "dimension " << i << " of size " << type.getDimSize(i);
    }
  }
  return success();
}
