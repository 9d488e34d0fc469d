// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// gemm, attention and pack.

#include "shapejit/Utils.h"

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/PatternMatch.h"

#include <cmath>

using namespace mlir;
using namespace shapejit;

static Type elementOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getElementType();
}

/// The sizes of a result must be those of the space it is indexed by.
static LogicalResult verifySizes(Operation *op, Type type, ArrayRef<AffineExpr> expected) {
  ArrayRef<AffineExpr> sizes = shapeOf(type).getDims();
  if (sizes.size() != expected.size())
    return op->emitOpError() << "result has rank " << sizes.size() << ", expected "
                             << expected.size();
  for (auto [i, size, want] : llvm::enumerate(sizes, expected))
    if (size != want)
      return op->emitOpError() << "result dimension " << i << " has size " << text(size)
                               << " but the space has " << text(want);
  return success();
}

//===----------------------------------------------------------------------===//
// GemmOp
//===----------------------------------------------------------------------===//

Type GemmOp::getAccumulateType() {
  if (std::optional<Type> type = getAccumulate())
    return *type;
  Type element = elementOf(getLhs());
  if (isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 32)
    return Float32Type::get(getContext());
  return element;
}

ParseResult GemmOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps;
  MappedOperands lhs, weights, extras;
  if (parser.parseKeyword("over") || parseSizes(parser, space) ||
      parseMappedOperands(parser, "lhs", /*optional=*/false, lhs, maps) ||
      parseMappedOperands(parser, "rhs", /*optional=*/false, weights, maps) ||
      parseMappedOperands(parser, "extras", /*optional=*/true, extras, maps))
    return failure();
  if (lhs.operands.size() != 1)
    return parser.emitError(lhs.loc, "expected one lhs");
  if (succeeded(parser.parseOptionalKeyword("accumulate"))) {
    Type type;
    if (parser.parseType(type))
      return failure();
    result.addAttribute("accumulate", TypeAttr::get(type));
  }
  Region *epilogue = result.addRegion();
  if (succeeded(parser.parseOptionalKeyword("epilogue")) && parser.parseRegion(*epilogue))
    return failure();
  Type type;
  if (parser.parseOptionalAttrDict(result.attributes) || parser.parseArrow() ||
      parser.parseType(type))
    return failure();
  for (MappedOperands *group : {&lhs, &weights, &extras})
    if (parser.resolveOperands(group->operands, group->types, group->loc, result.operands))
      return failure();
  result.addTypes(type);
  result.addAttribute("space", ShapeAttr::get(parser.getContext(), space));
  result.addAttribute("maps", builder.getArrayAttr(maps));
  result.addAttribute("operandSegmentSizes",
                      builder.getDenseI32ArrayAttr({1, static_cast<int32_t>(weights.types.size()),
                                                    static_cast<int32_t>(extras.types.size())}));
  return success();
}

void GemmOp::print(OpAsmPrinter &printer) {
  printer << " over ";
  printSizes(printer, getSpace().getDims());
  ArrayRef<Attribute> maps = getMaps().getValue();
  size_t weights = getWeights().size();
  printMappedOperands(printer, "lhs", getLhs(), maps.take_front(1));
  printMappedOperands(printer, "rhs", getWeights(), maps.slice(1, weights));
  printMappedOperands(printer, "extras", getExtras(), maps.drop_front(1 + weights));
  if (std::optional<Type> type = getAccumulate())
    printer << " accumulate " << *type;
  if (!getEpilogue().empty()) {
    printer << " epilogue ";
    printer.printRegion(getEpilogue());
  }
  printer.printOptionalAttrDict((*this)->getAttrs(),
                                {"space", "maps", "accumulate", "operandSegmentSizes"});
  printer << " -> " << getType();
}

/// The epilogue takes the accumulators and the extras' elements and yields the result's.
static LogicalResult verifyEpilogue(GemmOp op) {
  Type result = elementOf(op.getResult()), accumulate = op.getAccumulateType();
  size_t weights = op.getWeights().size(), extras = op.getExtras().size();
  if (op.getEpilogue().empty()) {
    if (weights != 1 || extras != 0)
      return op.emitOpError() << "has " << weights << " weights and " << extras
                              << " extras, which only an epilogue can combine";
    if (result != accumulate && result != elementOf(op.getLhs()))
      return op.emitOpError() << "without an epilogue gives the accumulate type " << accumulate
                              << " or the operands' " << elementOf(op.getLhs()) << ", not "
                              << result;
    return success();
  }
  Block &body = op.getEpilogue().front();
  if (body.getNumArguments() != weights + extras)
    return op.emitOpError() << "epilogue takes " << body.getNumArguments()
                            << " arguments, expected " << weights << " accumulators and " << extras
                            << " extras";
  for (auto [i, argument] : llvm::enumerate(body.getArguments())) {
    Type expected = i < weights ? accumulate : elementOf(op.getExtras()[i - weights]);
    if (argument.getType() != expected)
      return op.emitOpError() << "epilogue argument " << i << " is " << argument.getType()
                              << ", expected " << expected;
  }
  YieldOp yield = yieldOf(body);
  if (!yield || yield.getValues().size() != 1 || yield.getValues()[0].getType() != result)
    return op.emitOpError() << "epilogue must yield one " << result;
  return success();
}

LogicalResult GemmOp::verify() {
  ArrayRef<AffineExpr> space = getSpace().getDims();
  size_t weights = getWeights().size(), rank = space.size() - 1;
  if (space.size() < 3)
    return emitOpError() << "runs over " << space.size()
                         << " dimensions, expected m, n and k at least";
  if (weights != 1 && weights != 2)
    return emitOpError() << "has " << weights << " weights, expected one, or two for a gated pair";
  if (getMaps().size() != getNumOperands())
    return emitOpError() << "has " << getMaps().size() << " maps for " << getNumOperands()
                         << " operands";
  if (failed(verifyEncoded(*this, getType(), "result")))
    return failure();
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    std::string what = "operand " + std::to_string(i);
    bool isExtra = i > weights;
    if (failed(verifyEncoded(*this, operand.getType(), what)) ||
        failed(verifyAccess(*this, mapAt(getMaps(), i), isExtra ? space.drop_back() : space,
                            operand.getType(), what)))
      return failure();
    if (isExtra)
      continue;
    unsigned foreign = i == 0 ? rank - 1 : rank - 2;
    if (mapAt(getMaps(), i).isFunctionOfDim(foreign))
      return emitOpError() << what << ": "
                           << (i == 0 ? "the lhs must not depend on n (d"
                                      : "a weight must not depend on m (d")
                           << foreign << ")";
    if (elementOf(operand) != elementOf(getLhs()))
      return emitOpError() << what << " holds " << elementOf(operand) << " but the lhs holds "
                           << elementOf(getLhs());
  }
  if (failed(verifySizes(*this, getType(), space.drop_back())))
    return failure();
  return verifyEpilogue(*this);
}

namespace {
/// Drops extras that the epilogue does not read and merges equal ones.
struct SimplifyExtras : OpRewritePattern<GemmOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(GemmOp op, PatternRewriter &rewriter) const override {
    if (op.getEpilogue().empty())
      return failure();
    Block &body = op.getEpilogue().front();
    size_t weights = op.getWeights().size();
    SmallVector<Attribute> maps(op.getMaps().getValue().take_front(1 + weights));
    SmallVector<Value> extras;
    llvm::BitVector drop(body.getNumArguments());
    for (auto [i, extra] : llvm::enumerate(op.getExtras())) {
      BlockArgument argument = body.getArgument(weights + i);
      bool merged = false;
      for (unsigned j = 0; j < i && !merged; ++j)
        if (!drop[weights + j] && op.getExtras()[j] == extra &&
            op.getMaps()[1 + weights + j] == op.getMaps()[1 + weights + i]) {
          rewriter.replaceAllUsesWith(argument, body.getArgument(weights + j));
          merged = true;
        }
      if (merged || argument.use_empty()) {
        drop.set(weights + i);
        continue;
      }
      extras.push_back(extra);
      maps.push_back(op.getMaps()[1 + weights + i]);
    }
    if (drop.none())
      return failure();
    rewriter.modifyOpInPlace(op, [&] {
      body.eraseArguments(drop);
      op.getExtrasMutable().assign(extras);
      op.setMapsAttr(rewriter.getArrayAttr(maps));
    });
    return success();
  }
};
} // namespace

void GemmOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<SimplifyExtras>(context);
}

//===----------------------------------------------------------------------===//
// AttentionOp
//===----------------------------------------------------------------------===//

ParseResult AttentionOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps;
  MappedOperands groups[4];
  static constexpr StringLiteral kKeywords[] = {"q", "k", "v", "mask"};
  if (parser.parseKeyword("over") || parseSizes(parser, space))
    return failure();
  for (auto [keyword, group] : llvm::zip(kKeywords, groups)) {
    bool optional = keyword == "mask";
    if (parseMappedOperands(parser, keyword, optional, group, maps))
      return failure();
    if (group.operands.size() != 1 && !(optional && group.operands.empty()))
      return parser.emitError(group.loc) << "expected one operand for '" << keyword << "'";
  }
  AffineMapAttr resultMap;
  Type type;
  if (parser.parseOptionalAttrDict(result.attributes) || parser.parseArrow() ||
      parser.parseAttribute(resultMap) || parser.parseColonType(type))
    return failure();
  maps.push_back(resultMap);
  for (MappedOperands &group : groups)
    if (parser.resolveOperands(group.operands, group.types, group.loc, result.operands))
      return failure();
  result.addTypes(type);
  result.addAttribute("space", ShapeAttr::get(parser.getContext(), space));
  result.addAttribute("maps", builder.getArrayAttr(maps));
  return success();
}

void AttentionOp::print(OpAsmPrinter &printer) {
  printer << " over ";
  printSizes(printer, getSpace().getDims());
  ArrayRef<Attribute> maps = getMaps().getValue();
  printMappedOperands(printer, "q", getQ(), maps.slice(0, 1));
  printMappedOperands(printer, "k", getK(), maps.slice(1, 1));
  printMappedOperands(printer, "v", getV(), maps.slice(2, 1));
  if (getMask())
    printMappedOperands(printer, "mask", getMask(), maps.slice(3, 1));
  printer.printNewline();
  printer << "   ";
  printer.printOptionalAttrDict((*this)->getAttrs(), {"space", "maps"});
  printer << " -> " << maps.back() << " : " << getType();
}

LogicalResult AttentionOp::verify() {
  ArrayRef<AffineExpr> space = getSpace().getDims();
  if (space.size() != 6)
    return emitOpError() << "runs over " << space.size()
                         << " dimensions, expected [batch, heads, m, n, d, dv]";
  if (getMaps().size() != getNumOperands() + 1)
    return emitOpError() << "has " << getMaps().size() << " maps, expected one for each of the "
                         << getNumOperands() << " operands and one for the result";
  AffineExpr b = space[0], h = space[1], m = space[2], n = space[3], d = space[4], dv = space[5];
  SmallVector<SmallVector<AffineExpr>> spaces = {{b, h, m, d}, {b, h, n, d}, {b, h, n, dv}};
  if (getMask())
    spaces.push_back({b, h, m, n});
  static constexpr StringLiteral kNames[] = {"q", "k", "v", "mask"};
  Type element = elementOf(getQ());
  if (!isa<FloatType>(element))
    return emitOpError() << "needs floating-point operands, got " << element;
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    if (failed(verifyEncoded(*this, operand.getType(), kNames[i])) ||
        failed(verifyAccess(*this, mapAt(getMaps(), i), spaces[i], operand.getType(), kNames[i])))
      return failure();
    if (i < 3 && elementOf(operand) != element)
      return emitOpError() << kNames[i] << " holds " << elementOf(operand) << " but q holds "
                           << element;
  }
  if (getMask()) {
    Type mask = elementOf(getMask());
    if (!mask.isInteger(1) && !isa<FloatType>(mask))
      return emitOpError() << "mask holds " << mask << ", expected i1 or floating point";
  }
  if (failed(verifyEncoded(*this, getType(), "result")) ||
      failed(verifyAccess(*this, mapAt(getMaps(), getNumOperands()), {b, h, m, dv}, getType(),
                          "result")))
    return failure();
  if (elementOf(getResult()) != element)
    return emitOpError() << "result holds " << elementOf(getResult()) << " but q holds " << element;
  if (!std::isfinite(getScale().convertToDouble()))
    return emitOpError("needs a finite scale");
  if (auto causal = getCausal();
      causal && (causal->getNumDims() != 0 || causal->getNumResults() != 1))
    return emitOpError() << "causal offset must be one expression of symbols, got "
                         << text(*causal);
  return success();
}

//===----------------------------------------------------------------------===//
// PackOp
//===----------------------------------------------------------------------===//

LogicalResult PackOp::verify() {
  if (failed(verifyEncoded(*this, getSource().getType(), "source")) ||
      failed(verifyEncoded(*this, getType(), "result")))
    return failure();
  auto source = cast<RankedTensorType>(getSource().getType());
  auto result = cast<RankedTensorType>(getType());
  if (source.getRank() != 2 || !source.hasStaticShape())
    return emitOpError() << "packs a weight of rank 2 and static shape, got " << source;
  int64_t dim = getDim(), panel = getPanel();
  int64_t n = source.getDimSize(dim), k = source.getDimSize(1 - dim);
  SmallVector<int64_t> expected = {static_cast<int64_t>(llvm::divideCeil(n, panel)), k, panel};
  if (result.getShape() != ArrayRef(expected) || result.getElementType() != source.getElementType())
    return emitOpError() << "gives " << result << ", expected " << expected[0] << "x" << expected[1]
                         << "x" << expected[2] << "x" << source.getElementType();
  return success();
}
