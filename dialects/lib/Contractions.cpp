// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// gemm, conv, attention and pack.

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
// What gemm and conv share
//===----------------------------------------------------------------------===//

/// The type in which products of `operand`'s elements are summed.
static Type accumulateType(std::optional<Type> given, Value operand) {
  if (given)
    return *given;
  Type element = elementOf(operand);
  if (isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 32)
    return Float32Type::get(element.getContext());
  return element;
}

/// `accumulate f64 epilogue {..}`, both optional.
static ParseResult parseEpilogue(OpAsmParser &parser, OperationState &result) {
  if (succeeded(parser.parseOptionalKeyword("accumulate"))) {
    Type type;
    if (parser.parseType(type))
      return failure();
    result.addAttribute("accumulate", TypeAttr::get(type));
  }
  Region *epilogue = result.addRegion();
  if (succeeded(parser.parseOptionalKeyword("epilogue")))
    return parser.parseRegion(*epilogue);
  return success();
}

static void printEpilogue(OpAsmPrinter &printer, std::optional<Type> accumulate, Region &epilogue) {
  if (accumulate)
    printer << " accumulate " << *accumulate;
  if (epilogue.empty())
    return;
  printer << " epilogue ";
  printer.printRegion(epilogue);
}

/// The epilogue takes the accumulators, one a weight, and the extras' elements and yields the
/// result's.
template <typename Contraction>
static LogicalResult verifyEpilogue(Contraction op, size_t weights) {
  Type operand = elementOf(op->getOperand(0)), result = elementOf(op.getResult());
  Type accumulate = op.getAccumulateType();
  size_t extras = op.getExtras().size();
  if (op.getEpilogue().empty()) {
    if (weights != 1 || extras != 0)
      return op.emitOpError() << "has " << weights << " weights and " << extras
                              << " extras, which only an epilogue can combine";
    if (result != accumulate && result != operand)
      return op.emitOpError() << "without an epilogue gives the accumulate type " << accumulate
                              << " or the operands' " << operand << ", not " << result;
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

namespace {
/// Drops extras that the epilogue does not read and merges equal ones.
template <typename Contraction> struct SimplifyExtras : OpRewritePattern<Contraction> {
  using OpRewritePattern<Contraction>::OpRewritePattern;
  LogicalResult matchAndRewrite(Contraction op, PatternRewriter &rewriter) const override {
    if (op.getEpilogue().empty())
      return failure();
    Block &body = op.getEpilogue().front();
    size_t count = op.getExtras().size();
    size_t accumulators = body.getNumArguments() - count;
    ArrayRef<Attribute> all = op.getMaps().getValue();
    size_t first = op->getNumOperands() - count;
    ArrayRef<Attribute> extraMaps = all.slice(first, count);
    SmallVector<Attribute> maps(all.take_front(first));
    SmallVector<Value> extras;
    llvm::BitVector drop(body.getNumArguments());
    for (auto [i, extra] : llvm::enumerate(op.getExtras())) {
      BlockArgument argument = body.getArgument(accumulators + i);
      bool merged = false;
      for (unsigned j = 0; j < i && !merged; ++j)
        if (!drop[accumulators + j] && op.getExtras()[j] == extra && extraMaps[j] == extraMaps[i]) {
          rewriter.replaceAllUsesWith(argument, body.getArgument(accumulators + j));
          merged = true;
        }
      if (merged || argument.use_empty()) {
        drop.set(accumulators + i);
        continue;
      }
      extras.push_back(extra);
      maps.push_back(extraMaps[i]);
    }
    if (drop.none())
      return failure();
    llvm::append_range(maps, all.drop_front(first + count));
    rewriter.modifyOpInPlace(op, [&] {
      body.eraseArguments(drop);
      op.getExtrasMutable().assign(extras);
      op.setMapsAttr(rewriter.getArrayAttr(maps));
    });
    return success();
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// GemmOp
//===----------------------------------------------------------------------===//

Type GemmOp::getAccumulateType() { return accumulateType(getAccumulate(), getLhs()); }

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
  Type type;
  if (parseEpilogue(parser, result) || parser.parseOptionalAttrDict(result.attributes) ||
      parser.parseArrow() || parser.parseType(type))
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
  printEpilogue(printer, getAccumulate(), getEpilogue());
  printer.printOptionalAttrDict((*this)->getAttrs(),
                                {"space", "maps", "accumulate", "operandSegmentSizes"});
  printer << " -> " << getType();
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
  return verifyEpilogue(*this, weights);
}

void GemmOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<SimplifyExtras<GemmOp>>(context);
}

//===----------------------------------------------------------------------===//
// ConvOp
//===----------------------------------------------------------------------===//

Type ConvOp::getAccumulateType() { return accumulateType(getAccumulate(), getInput()); }

namespace {
/// The lists of a window that are written only when they say something; all but `padding` hold
/// 1 by default.
constexpr StringLiteral kFactorKeywords[] = {"stride", "dilation", "lhs_dilation"};
constexpr StringLiteral kFactorAttributes[] = {"strides", "dilations", "lhs_dilations"};
} // namespace

/// `[2, 2]`, or nothing when the keyword does not follow.
static ParseResult parseFactors(OpAsmParser &parser, StringRef keyword,
                                SmallVectorImpl<int64_t> &factors) {
  if (failed(parser.parseOptionalKeyword(keyword)))
    return success();
  factors.clear();
  return parser.parseCommaSeparatedList(
      AsmParser::Delimiter::Square, [&] { return parser.parseInteger(factors.emplace_back()); });
}

/// `padding [(3, 3), (3, 2)]`, or nothing.
static ParseResult parsePadding(OpAsmParser &parser, SmallVectorImpl<int64_t> &padding) {
  if (failed(parser.parseOptionalKeyword("padding")))
    return success();
  padding.clear();
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&]() -> ParseResult {
    return failure(parser.parseLParen() || parser.parseInteger(padding.emplace_back()) ||
                   parser.parseComma() || parser.parseInteger(padding.emplace_back()) ||
                   parser.parseRParen());
  });
}

/// `image [s1, s2] stride [2, 2] padding [(3, 3), (3, 3)]`.
static ParseResult parseWindow(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> image;
  if (parser.parseKeyword("image") || parseSizes(parser, image))
    return failure();
  result.addAttribute("image", ShapeAttr::get(parser.getContext(), image));
  for (auto [keyword, attribute] : llvm::zip(kFactorKeywords, kFactorAttributes)) {
    SmallVector<int64_t> factors(image.size(), 1);
    if (parseFactors(parser, keyword, factors))
      return failure();
    result.addAttribute(attribute, builder.getDenseI64ArrayAttr(factors));
  }
  SmallVector<int64_t> padding(2 * image.size(), 0);
  if (parsePadding(parser, padding))
    return failure();
  result.addAttribute("padding", builder.getDenseI64ArrayAttr(padding));
  return success();
}

static void printWindow(OpAsmPrinter &printer, ConvOp op) {
  printer << " image ";
  printSizes(printer, op.getImage().getDims());
  for (auto [keyword, attribute] : llvm::zip(kFactorKeywords, kFactorAttributes)) {
    ArrayRef<int64_t> factors = op->getAttrOfType<DenseI64ArrayAttr>(attribute);
    if (llvm::all_of(factors, [](int64_t factor) { return factor == 1; }))
      continue;
    printer << " " << keyword << " [";
    llvm::interleaveComma(factors, printer.getStream());
    printer << "]";
  }
  ArrayRef<int64_t> padding = op.getPadding();
  if (llvm::all_of(padding, [](int64_t pad) { return pad == 0; }))
    return;
  printer << " padding [";
  llvm::interleaveComma(
      llvm::seq<size_t>(0, padding.size() / 2), printer.getStream(),
      [&](size_t i) { printer << "(" << padding[2 * i] << ", " << padding[2 * i + 1] << ")"; });
  printer << "]";
}

ParseResult ConvOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps;
  MappedOperands input, weight, extras;
  if (parser.parseKeyword("over") || parseSizes(parser, space) || parseWindow(parser, result) ||
      parseMappedOperands(parser, "input", /*optional=*/false, input, maps) ||
      parseMappedOperands(parser, "weight", /*optional=*/false, weight, maps) ||
      parseMappedOperands(parser, "extras", /*optional=*/true, extras, maps))
    return failure();
  if (input.operands.size() != 1)
    return parser.emitError(input.loc, "expected one input");
  if (weight.operands.size() != 1)
    return parser.emitError(weight.loc, "expected one weight");
  AffineMapAttr resultMap;
  Type type;
  if (parseEpilogue(parser, result) || parser.parseOptionalAttrDict(result.attributes) ||
      parser.parseArrow() || parser.parseAttribute(resultMap) || parser.parseColonType(type))
    return failure();
  maps.push_back(resultMap);
  for (MappedOperands *group : {&input, &weight, &extras})
    if (parser.resolveOperands(group->operands, group->types, group->loc, result.operands))
      return failure();
  result.addTypes(type);
  result.addAttribute("space", ShapeAttr::get(parser.getContext(), space));
  result.addAttribute("maps", builder.getArrayAttr(maps));
  return success();
}

void ConvOp::print(OpAsmPrinter &printer) {
  printer << " over ";
  printSizes(printer, getSpace().getDims());
  printWindow(printer, *this);
  ArrayRef<Attribute> maps = getMaps().getValue();
  printMappedOperands(printer, "input", getInput(), maps.slice(0, 1));
  printMappedOperands(printer, "weight", getWeight(), maps.slice(1, 1));
  printMappedOperands(printer, "extras", getExtras(), maps.slice(2, getExtras().size()));
  printEpilogue(printer, getAccumulate(), getEpilogue());
  printer.printOptionalAttrDict(
      (*this)->getAttrs(),
      {"space", "image", "maps", "strides", "dilations", "padding", "lhs_dilations", "accumulate"});
  printer << " -> " << maps.back() << " : " << getType();
}

/// Lists of the window: an entry (`padding`: two) each spatial dimension, factors positive.
static LogicalResult verifyWindow(ConvOp op) {
  size_t spatial = op.getSpatialRank();
  for (auto [keyword, attribute] : llvm::zip(kFactorKeywords, kFactorAttributes)) {
    ArrayRef<int64_t> factors = op->getAttrOfType<DenseI64ArrayAttr>(attribute);
    if (factors.size() != spatial)
      return op.emitOpError() << keyword << " has " << factors.size() << " entries, expected "
                              << spatial;
    for (int64_t factor : factors)
      if (factor < 1)
        return op.emitOpError() << keyword << " must be at least 1, got " << factor;
  }
  if (op.getPadding().size() != 2 * spatial)
    return op.emitOpError() << "padding has " << op.getPadding().size() << " numbers, expected "
                            << 2 * spatial;
  return success();
}

/// The number of output pixels where all sizes that it follows from are constant.
static std::optional<int64_t> outputPixels(ConvOp op, unsigned dim) {
  unsigned spatial = op.getSpatialRank();
  auto image = dyn_cast<AffineConstantExpr>(op.getImage().getDims()[dim]);
  auto taps = dyn_cast<AffineConstantExpr>(op.getSpace().getDims()[4 + spatial + dim]);
  if (!image || !taps || image.getValue() == 0)
    return std::nullopt;
  int64_t dilated = (image.getValue() - 1) * op.getLhsDilations()[dim] + 1;
  int64_t padded = dilated + op.getPadding()[2 * dim] + op.getPadding()[2 * dim + 1];
  int64_t reach = (taps.getValue() - 1) * op.getDilations()[dim] + 1;
  return std::max<int64_t>(0, llvm::divideFloorSigned(padded - reach, op.getStrides()[dim]) + 1);
}

static LogicalResult verifyOutputSizes(ConvOp op) {
  for (unsigned dim = 0; dim < op.getSpatialRank(); ++dim) {
    auto size = dyn_cast<AffineConstantExpr>(op.getSpace().getDims()[2 + dim]);
    std::optional<int64_t> expected = outputPixels(op, dim);
    if (size && expected && size.getValue() != *expected)
      return op.emitOpError() << "has " << size.getValue() << " output pixels in spatial dimension "
                              << dim << ", expected " << *expected;
  }
  return success();
}

LogicalResult ConvOp::verify() {
  ArrayRef<AffineExpr> space = getSpace().getDims(), image = getImage().getDims();
  size_t spatial = image.size();
  if (spatial < 1 || spatial > 3)
    return emitOpError() << "has an image of rank " << spatial << ", expected 1, 2 or 3";
  if (space.size() != 4 + 2 * spatial)
    return emitOpError() << "runs over " << space.size() << " dimensions, expected "
                         << 4 + 2 * spatial << " for an image of rank " << spatial
                         << ": [n, g, o.., f, c, t..]";
  if (getMaps().size() != getNumOperands() + 1)
    return emitOpError() << "has " << getMaps().size() << " maps, expected one for each of the "
                         << getNumOperands() << " operands and one for the result";
  if (failed(verifyWindow(*this)))
    return failure();
  AffineExpr n = space[0], g = space[1], f = space[2 + spatial], c = space[3 + spatial];
  SmallVector<AffineExpr> inputSpace = {n, g}, weightSpace = {g, f, c};
  llvm::append_range(inputSpace, image);
  inputSpace.push_back(c);
  llvm::append_range(weightSpace, space.take_back(spatial));
  ArrayRef<AffineExpr> resultSpace = space.take_front(3 + spatial);
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    std::string what = i == 0   ? "the input"
                       : i == 1 ? "the weight"
                                : "extra " + std::to_string(i - 2);
    ArrayRef<AffineExpr> over = i == 0 ? inputSpace : i == 1 ? weightSpace : resultSpace;
    if (failed(verifyEncoded(*this, operand.getType(), what)) ||
        failed(verifyAccess(*this, mapAt(getMaps(), i), over, operand.getType(), what)))
      return failure();
  }
  if (elementOf(getWeight()) != elementOf(getInput()))
    return emitOpError() << "the weight holds " << elementOf(getWeight()) << " but the input holds "
                         << elementOf(getInput());
  if (failed(verifyEncoded(*this, getType(), "the result")) ||
      failed(verifyAccess(*this, mapAt(getMaps(), getNumOperands()), resultSpace, getType(),
                          "the result")) ||
      failed(verifyOutputSizes(*this)))
    return failure();
  return verifyEpilogue(*this, /*weights=*/1);
}

void ConvOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<SimplifyExtras<ConvOp>>(context);
}

//===----------------------------------------------------------------------===//
// AttentionOp
//===----------------------------------------------------------------------===//

ParseResult AttentionOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps;
  MappedOperands groups[6];
  static constexpr StringLiteral kKeywords[] = {"q", "k", "v", "mask", "lengths", "starts"};
  static constexpr size_t kCounts[] = {1, 1, 1, 1, 1, 2};
  if (parser.parseKeyword("over") || parseSizes(parser, space))
    return failure();
  for (auto [i, keyword, group] : llvm::enumerate(kKeywords, groups)) {
    bool optional = i >= 3;
    if (parseMappedOperands(parser, keyword, optional, group, maps))
      return failure();
    if (group.operands.size() != kCounts[i] && !(optional && group.operands.empty()))
      return parser.emitError(group.loc)
             << "expected " << (kCounts[i] == 1 ? "one operand" : "two operands") << " for '"
             << keyword << "'";
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
  if (!groups[4].operands.empty())
    result.addAttribute("has_lengths", builder.getUnitAttr());
  if (!groups[5].operands.empty())
    result.addAttribute("is_ragged", builder.getUnitAttr());
  return success();
}

void AttentionOp::print(OpAsmPrinter &printer) {
  printer << " over ";
  printSizes(printer, getSpace().getDims());
  ArrayRef<Attribute> maps = getMaps().getValue();
  printMappedOperands(printer, "q", getQ(), maps.slice(0, 1));
  printMappedOperands(printer, "k", getK(), maps.slice(1, 1));
  printMappedOperands(printer, "v", getV(), maps.slice(2, 1));
  size_t next = 0;
  auto print = [&](StringRef keyword, size_t count) {
    if (count)
      printMappedOperands(printer, keyword, getOthers().slice(next, count),
                          maps.slice(3 + next, count));
    next += count;
  };
  print("mask", countMasks());
  print("lengths", getHasLengths() ? 1 : 0);
  print("starts", getIsRagged() ? 2 : 0);
  printer.printNewline();
  printer << "   ";
  printer.printOptionalAttrDict((*this)->getAttrs(), {"space", "maps", "has_lengths", "is_ragged"});
  printer << " -> " << maps.back() << " : " << getType();
}

/// The operands after v: types, and the spaces that their maps go over.
static LogicalResult verifyOthers(AttentionOp op, SmallVectorImpl<SmallVector<AffineExpr>> &spaces,
                                  SmallVectorImpl<StringRef> &names) {
  ArrayRef<AffineExpr> space = op.getSpace().getDims();
  AffineExpr b = space[0], h = space[1], m = space[2], n = space[3];
  size_t masks = op.countMasks();
  size_t known = masks + (op.getHasLengths() ? 1 : 0) + (op.getIsRagged() ? 2 : 0);
  if (masks > 1 || known != op.getOthers().size())
    return op.emitOpError() << "has " << op.getOthers().size()
                            << " operands after v, which do not fit its attributes: at most one "
                               "mask, lengths if has_lengths, two starts if is_ragged";
  if (masks) {
    spaces.push_back({b, h, m, n});
    names.push_back("mask");
    Type mask = elementOf(op.getOthers()[0]);
    if (!mask.isInteger(1) && !isa<FloatType>(mask))
      return op.emitOpError() << "mask holds " << mask << ", expected i1 or floating point";
  }
  if (op.getHasLengths()) {
    spaces.push_back({b, h});
    names.push_back("lengths");
  }
  if (op.getIsRagged()) {
    for (int i = 0; i < 2; ++i) {
      spaces.push_back({b + 1});
      names.push_back("starts");
    }
  }
  for (size_t i = masks; i < known; ++i) {
    Type element = elementOf(op.getOthers()[i]);
    if (!element.isInteger(32) && !element.isInteger(64))
      return op.emitOpError() << names[3 + i] << " holds " << element << ", expected i32 or i64";
  }
  return success();
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
  SmallVector<StringRef> names = {"q", "k", "v"};
  if (failed(verifyOthers(*this, spaces, names)))
    return failure();
  Type element = elementOf(getQ());
  if (!isa<FloatType>(element))
    return emitOpError() << "needs floating-point operands, got " << element;
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    if (failed(verifyEncoded(*this, operand.getType(), names[i])) ||
        failed(verifyAccess(*this, mapAt(getMaps(), i), spaces[i], operand.getType(), names[i])))
      return failure();
    if (i < 3 && elementOf(operand) != element)
      return emitOpError() << names[i] << " holds " << elementOf(operand) << " but q holds "
                           << element;
  }
  if (failed(verifyEncoded(*this, getType(), "result")) ||
      failed(verifyAccess(*this, mapAt(getMaps(), getNumOperands()), {b, h, m, dv}, getType(),
                          "result")))
    return failure();
  if (elementOf(getResult()) != element)
    return emitOpError() << "result holds " << elementOf(getResult()) << " but q holds " << element;
  if (!std::isfinite(getScale().convertToDouble()))
    return emitOpError("needs a finite scale");
  auto causal = getCausal();
  if (causal && (causal->getNumDims() != 0 || causal->getNumResults() != 1))
    return emitOpError() << "causal offset must be one expression of symbols, got "
                         << text(*causal);
  if (getFromEnd() && !causal)
    return emitOpError("counts a causal offset from the end, but has none");
  if (getIsInitialized() && !getHasLengths())
    return emitOpError("says what lies beyond its lengths, but has none");
  return success();
}

//===----------------------------------------------------------------------===//
// PackOp
//===----------------------------------------------------------------------===//

ParseResult shapejit::parseSpace(OpAsmParser &parser, ShapeAttr &space) {
  SmallVector<AffineExpr> sizes;
  if (parseSizes(parser, sizes))
    return failure();
  space = ShapeAttr::get(parser.getContext(), sizes);
  return success();
}

void shapejit::printSpace(OpAsmPrinter &printer, Operation *, ShapeAttr space) {
  printSizes(printer, space.getDims());
}

/// The sizes over which a weight is packed; those of a matrix whose dimension `dim` comes first
/// when the op has no space of its own.
static FailureOr<SmallVector<int64_t>> packedSpace(PackOp op, RankedTensorType source) {
  SmallVector<int64_t> sizes;
  if (!op.getSpace()) {
    int64_t dim = op.getDim();
    if (source.getRank() != 2 || dim > 1)
      return op.emitOpError()
             << "without a space packs dimension 0 or 1 of a matrix, got dimension " << dim
             << " of " << source;
    return SmallVector<int64_t>{source.getDimSize(dim), source.getDimSize(1 - dim)};
  }
  for (AffineExpr size : op.getSpace()->getDims()) {
    auto constant = dyn_cast<AffineConstantExpr>(size);
    if (!constant)
      return op.emitOpError() << "packs over constant sizes, got " << text(size);
    sizes.push_back(constant.getValue());
  }
  if (op.getDim() >= sizes.size())
    return op.emitOpError() << "cuts dimension " << op.getDim() << " of a space of rank "
                            << sizes.size();
  if (failed(verifyAccess(op, *op.getMap(), op.getSpace()->getDims(), source, "source")))
    return failure();
  return sizes;
}

LogicalResult PackOp::verify() {
  if (failed(verifyEncoded(*this, getSource().getType(), "source")) ||
      failed(verifyEncoded(*this, getType(), "result")))
    return failure();
  auto source = cast<RankedTensorType>(getSource().getType());
  auto result = cast<RankedTensorType>(getType());
  if (!source.hasStaticShape())
    return emitOpError() << "packs a weight of static shape, got " << source;
  if (getSpace().has_value() != getMap().has_value())
    return emitOpError("needs both a space and a map, or neither");
  FailureOr<SmallVector<int64_t>> expected = packedSpace(*this, source);
  if (failed(expected))
    return failure();
  int64_t panel = getPanel(), cut = getSpace() ? getDim() : 0;
  (*expected)[cut] = llvm::divideCeil((*expected)[cut], panel);
  expected->push_back(panel);
  if (result.getShape() != ArrayRef(*expected) ||
      result.getElementType() != source.getElementType()) {
    auto diag = emitOpError() << "gives " << result << ", expected ";
    llvm::interleave(*expected, diag, "x");
    return diag << "x" << source.getElementType();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// JoinOp
//===----------------------------------------------------------------------===//

/// A weight that is joined: static, of the first one's type but for its size along the dimension.
static LogicalResult verifyJoined(JoinOp op, unsigned number, RankedTensorType first) {
  std::string what = "source " + std::to_string(number);
  auto source = cast<RankedTensorType>(op.getSources()[number].getType());
  if (failed(verifyEncoded(op, source, what)))
    return failure();
  if (!source.hasStaticShape())
    return op.emitOpError() << "joins weights of static shape, got " << source;
  auto expected = llvm::to_vector(first.getShape());
  bool same =
      source.getRank() == first.getRank() && source.getElementType() == first.getElementType();
  if (same)
    expected[op.getDim()] = source.getDimSize(op.getDim());
  if (!same || source.getShape() != ArrayRef(expected))
    return op.emitOpError() << what << " is " << source << ", which differs from source 0, "
                            << first << ", in more than dimension " << op.getDim();
  return success();
}

LogicalResult JoinOp::verify() {
  if (getSources().size() < 2)
    return emitOpError() << "joins " << getSources().size() << " weights, expected at least two";
  auto first = cast<RankedTensorType>(getSources()[0].getType());
  int64_t dim = getDim();
  if (dim >= first.getRank())
    return emitOpError() << "joins along dimension " << dim << " of " << first;
  auto expected = llvm::to_vector(first.getShape());
  expected[dim] = 0;
  for (auto [i, source] : llvm::enumerate(getSources())) {
    if (failed(verifyJoined(*this, i, first)))
      return failure();
    expected[dim] += cast<RankedTensorType>(source.getType()).getDimSize(dim);
  }
  auto result = cast<RankedTensorType>(getType());
  if (failed(verifyEncoded(*this, result, "result")))
    return failure();
  if (result.getShape() != ArrayRef(expected) ||
      result.getElementType() != first.getElementType()) {
    auto diag = emitOpError() << "gives " << result << ", expected ";
    llvm::interleave(expected, diag, "x");
    return diag << "x" << first.getElementType();
  }
  return success();
}
