// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Views, loops and the ops of a loop's body.

#include "shapejit/Utils.h"

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/PatternMatch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace shapejit;

//===----------------------------------------------------------------------===//
// ViewOp
//===----------------------------------------------------------------------===//

LogicalResult ViewOp::verify() {
  if (failed(verifyEncoded(*this, getSource().getType(), "source")) ||
      failed(verifyEncoded(*this, getType(), "result")))
    return failure();
  auto source = cast<RankedTensorType>(getSource().getType());
  auto result = cast<RankedTensorType>(getType());
  if (source.getElementType() != result.getElementType())
    return emitOpError() << "changes the element type from " << source.getElementType() << " to "
                         << result.getElementType() << "; a view only moves elements";
  return verifyAccess(*this, getMap(), shapeOf(result).getDims(), source, "source");
}

OpFoldResult ViewOp::fold(FoldAdaptor) {
  if (getMap().isIdentity() && getType() == getSource().getType())
    return getSource();
  return {};
}

/// `(e floordiv a) floordiv b` is `e floordiv (a * b)` for positive constants. Upstream keeps both
/// divisions, so that terms which cancel stay, and the bounds of indices grow apart.
static AffineExpr mergeDivisions(AffineExpr expr) {
  auto binary = dyn_cast<AffineBinaryOpExpr>(expr);
  if (!binary)
    return expr;
  AffineExpr lhs = mergeDivisions(binary.getLHS()), rhs = mergeDivisions(binary.getRHS());
  auto divisor = dyn_cast<AffineConstantExpr>(rhs);
  auto inner = dyn_cast<AffineBinaryOpExpr>(lhs);
  if (expr.getKind() == AffineExprKind::FloorDiv && divisor && inner &&
      inner.getKind() == AffineExprKind::FloorDiv) {
    auto first = dyn_cast<AffineConstantExpr>(inner.getRHS());
    int64_t both;
    if (first && first.getValue() > 0 && divisor.getValue() > 0 &&
        !llvm::MulOverflow(first.getValue(), divisor.getValue(), both))
      return inner.getLHS().floorDiv(both);
  }
  return getAffineBinaryOpExpr(expr.getKind(), lhs, rhs);
}

/// A view of a view reads through the composed map. Symbols mean the same in both
/// maps, so (unlike AffineMap::compose) they are not concatenated.
LogicalResult ViewOp::canonicalize(ViewOp op, PatternRewriter &rewriter) {
  auto producer = op.getSource().getDefiningOp<ViewOp>();
  if (!producer)
    return failure();
  AffineMap outer = producer.getMap(), inner = op.getMap();
  unsigned symbols = std::max(outer.getNumSymbols(), inner.getNumSymbols());
  SmallVector<AffineExpr> results;
  for (AffineExpr expr : outer.getResults()) {
    // Simplified before, as remainders become quotients of quotients then, and after.
    AffineExpr composed =
        simplifyAffineExpr(expr.replaceDims(inner.getResults()), inner.getNumDims(), symbols);
    results.push_back(simplifyAffineExpr(mergeDivisions(composed), inner.getNumDims(), symbols));
  }
  auto map = AffineMap::get(inner.getNumDims(), symbols, results, op.getContext());
  rewriter.replaceOpWithNewOp<ViewOp>(op, op.getType(), producer.getSource(),
                                      AffineMapAttr::get(map));
  return success();
}

//===----------------------------------------------------------------------===//
// LoopOp
//===----------------------------------------------------------------------===//

static constexpr StringLiteral kNoCombine = "none";
static constexpr StringLiteral kCombines[] = {"add", "mul", "max", "min", "and", "or"};

ParseResult LoopOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &builder = parser.getBuilder();
  SmallVector<AffineExpr> space;
  SmallVector<Attribute> maps, kinds;
  MappedOperands inputs;
  if (parser.parseKeyword("over") || parseSizes(parser, space) ||
      parseMappedOperands(parser, "ins", /*optional=*/true, inputs, maps) ||
      parser.parseKeyword("outs"))
    return failure();
  auto parseResult = [&]() -> ParseResult {
    StringRef kind = kNoCombine;
    for (StringRef combine : kCombines)
      if (succeeded(parser.parseOptionalKeyword(combine))) {
        kind = combine;
        break;
      }
    AffineMapAttr map;
    Type type;
    if (parser.parseAttribute(map) || parser.parseColonType(type))
      return failure();
    kinds.push_back(builder.getStringAttr(kind));
    maps.push_back(map);
    result.addTypes(type);
    return success();
  };
  Region *body = result.addRegion();
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parseResult) ||
      parser.parseRegion(*body) || parser.parseOptionalAttrDict(result.attributes) ||
      parser.resolveOperands(inputs.operands, inputs.types, inputs.loc, result.operands))
    return failure();
  if (body->empty())
    body->emplaceBlock();
  result.addAttribute("space", ShapeAttr::get(parser.getContext(), space));
  result.addAttribute("maps", builder.getArrayAttr(maps));
  result.addAttribute("kinds", builder.getArrayAttr(kinds));
  return success();
}

void LoopOp::print(OpAsmPrinter &printer) {
  printer << " over ";
  printSizes(printer, getSpace().getDims());
  ArrayRef<Attribute> maps = getMaps().getValue();
  size_t inputs = getInputs().size();
  printMappedOperands(printer, "ins", getInputs(), maps.take_front(inputs));
  printer.printNewline();
  printer << "    outs(";
  llvm::interleaveComma(llvm::zip(getOuts(), getKinds(), maps.drop_front(inputs)),
                        printer.getStream(), [&](auto triple) {
                          auto [out, kind, map] = triple;
                          if (StringRef name = cast<StringAttr>(kind).getValue();
                              name != kNoCombine)
                            printer << name << " ";
                          printer << map << " : " << out.getType();
                        });
  printer << ") ";
  printer.printRegion(getBody());
  printer.printOptionalAttrDict((*this)->getAttrs(), {"space", "maps", "kinds"});
}

static LogicalResult verifyLoopResult(LoopOp op, unsigned i, AffineMap map, StringRef kind) {
  ArrayRef<AffineExpr> space = op.getSpace().getDims();
  Value out = op.getOuts()[i];
  std::string what = "result " + std::to_string(i);
  if (failed(verifyEncoded(op, out.getType(), what)) ||
      failed(verifyAccess(op, map, space, out.getType(), what)))
    return failure();
  if (!map.isProjectedPermutation())
    return op.emitOpError() << what << ": the map must list loop dimensions, each at most once, "
                            << "got " << text(map);
  Type element = cast<RankedTensorType>(out.getType()).getElementType();
  bool reduced = map.getNumResults() < space.size();
  if (kind == kNoCombine && reduced)
    return op.emitOpError() << what << ": the map lacks " << space.size() - map.getNumResults()
                            << " loop dimensions, so the result needs a combine kind";
  if (kind != kNoCombine && !llvm::is_contained(kCombines, kind))
    return op.emitOpError() << what << ": unknown combine kind '" << kind
                            << "', expected add, mul, max, min, and, or";
  if (kind != kNoCombine && !reduced)
    return op.emitOpError() << what << ": is combined by '" << kind
                            << "' but its map has every loop dimension";
  if ((kind == "and" || kind == "or") && !element.isInteger())
    return op.emitOpError() << what << ": '" << kind << "' combines integers, got " << element;
  if (kind != kNoCombine && kind != "and" && kind != "or" && element.isInteger(1))
    return op.emitOpError() << what << ": '" << kind << "' cannot combine i1; use and, or";
  for (auto [j, expr, size] : llvm::enumerate(map.getResults(), shapeOf(out.getType()).getDims())) {
    AffineExpr expected = space[cast<AffineDimExpr>(expr).getPosition()];
    if (size != expected)
      return op.emitOpError() << what << ": dimension " << j << " has size " << text(size)
                              << " but the loop runs over " << text(expected);
  }
  return success();
}

LogicalResult LoopOp::verify() {
  size_t inputs = getInputs().size(), outs = getOuts().size();
  if (getMaps().size() != inputs + outs)
    return emitOpError() << "has " << getMaps().size() << " maps for " << inputs << " inputs and "
                         << outs << " results";
  if (getKinds().size() != outs)
    return emitOpError() << "has " << getKinds().size() << " kinds for " << outs << " results";
  if (outs == 0)
    return emitOpError("needs a result");
  for (auto [i, input] : llvm::enumerate(getInputs())) {
    std::string what = "input " + std::to_string(i);
    if (failed(verifyEncoded(*this, input.getType(), what)) ||
        failed(
            verifyAccess(*this, mapAt(getMaps(), i), getSpace().getDims(), input.getType(), what)))
      return failure();
  }
  for (unsigned i = 0; i < outs; ++i)
    if (failed(verifyLoopResult(*this, i, mapAt(getMaps(), inputs + i),
                                cast<StringAttr>(getKinds()[i]).getValue())))
      return failure();

  Block &body = getBody().front();
  if (body.getNumArguments() != inputs)
    return emitOpError() << "has " << inputs << " inputs but its body takes "
                         << body.getNumArguments() << " arguments";
  for (auto [i, argument, input] : llvm::enumerate(body.getArguments(), getInputs())) {
    Type element = cast<RankedTensorType>(input.getType()).getElementType();
    if (argument.getType() != element)
      return emitOpError() << "body argument " << i << " is " << argument.getType() << " but input "
                           << i << " holds " << element;
  }
  YieldOp yield = yieldOf(body);
  if (!yield)
    return emitOpError("body must end with shapejit.yield");
  if (yield.getValues().size() != outs)
    return emitOpError() << "body yields " << yield.getValues().size() << " values for " << outs
                         << " results";
  for (auto [i, value, out] : llvm::enumerate(yield.getValues(), getOuts())) {
    Type element = cast<RankedTensorType>(out.getType()).getElementType();
    if (value.getType() != element)
      return emitOpError() << "body yields " << value.getType() << " for result " << i
                           << " of element type " << element;
  }
  return success();
}

namespace {
/// Drops inputs that the body does not read and merges inputs that read the same
/// element; both are left behind by inlining.
struct SimplifyInputs : OpRewritePattern<LoopOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(LoopOp op, PatternRewriter &rewriter) const override {
    Block &body = op.getBody().front();
    SmallVector<Attribute> maps;
    SmallVector<Value> inputs;
    llvm::BitVector drop(body.getNumArguments());
    for (auto [i, input] : llvm::enumerate(op.getInputs())) {
      BlockArgument argument = body.getArgument(i);
      bool merged = false;
      for (unsigned j = 0; j < i && !merged; ++j)
        if (!drop[j] && op.getInputs()[j] == input && op.getMaps()[j] == op.getMaps()[i]) {
          rewriter.replaceAllUsesWith(argument, body.getArgument(j));
          merged = true;
        }
      if (merged || argument.use_empty()) {
        drop.set(i);
        continue;
      }
      inputs.push_back(input);
      maps.push_back(op.getMaps()[i]);
    }
    if (drop.none())
      return failure();
    llvm::append_range(maps, op.getMaps().getValue().drop_front(op.getInputs().size()));
    rewriter.modifyOpInPlace(op, [&] {
      body.eraseArguments(drop);
      op.getInputsMutable().assign(inputs);
      op.setMapsAttr(rewriter.getArrayAttr(maps));
    });
    return success();
  }
};

/// Drops results that nobody reads.
struct DropUnusedResults : OpRewritePattern<LoopOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(LoopOp op, PatternRewriter &rewriter) const override {
    if (op->use_empty() || llvm::none_of(op.getOuts(), [](Value v) { return v.use_empty(); }))
      return failure();
    size_t inputs = op.getInputs().size();
    SmallVector<Attribute> maps(op.getMaps().getValue().take_front(inputs)), kinds;
    SmallVector<Type> types;
    SmallVector<Value> kept, yielded;
    auto yield = cast<YieldOp>(op.getBody().front().getTerminator());
    for (auto [i, out] : llvm::enumerate(op.getOuts())) {
      if (out.use_empty())
        continue;
      types.push_back(out.getType());
      kept.push_back(out);
      yielded.push_back(yield.getValues()[i]);
      kinds.push_back(op.getKinds()[i]);
      maps.push_back(op.getMaps()[inputs + i]);
    }
    auto loop = LoopOp::create(rewriter, op.getLoc(), types, op.getInputs(), op.getSpace(),
                               rewriter.getArrayAttr(maps), rewriter.getArrayAttr(kinds));
    rewriter.modifyOpInPlace(yield, [&] { yield.getValuesMutable().assign(yielded); });
    rewriter.inlineRegionBefore(op.getBody(), loop.getBody(), loop.getBody().end());
    for (auto [from, to] : llvm::zip(kept, loop.getOuts()))
      rewriter.replaceAllUsesWith(from, to);
    rewriter.eraseOp(op);
    return success();
  }
};
} // namespace

void LoopOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<SimplifyInputs, DropUnusedResults>(context);
}

LogicalResult IndexOp::verify() {
  auto loop = cast<LoopOp>((*this)->getParentOp());
  size_t rank = loop.getSpace().getDims().size();
  if (static_cast<uint64_t>(getDim()) >= rank)
    return emitOpError() << "names dimension " << getDim() << " of a loop with " << rank
                         << " dimensions";
  return success();
}
