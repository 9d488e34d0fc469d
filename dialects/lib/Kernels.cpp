// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Kernels, launches and dispatch.

#include "shapejit/Utils.h"

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace shapejit;

//===----------------------------------------------------------------------===//
// KernelOp
//===----------------------------------------------------------------------===//

ParseResult KernelOp::parse(OpAsmParser &parser, OperationState &result) {
  StringAttr name;
  int64_t symbols = 0;
  SmallVector<OpAsmParser::Argument> arguments;
  if (parser.parseSymbolName(name, "sym_name", result.attributes) ||
      parser.parseKeyword("symbols") || parser.parseInteger(symbols) ||
      parser.parseArgumentList(arguments, OpAsmParser::Delimiter::Paren, /*allowType=*/true) ||
      parser.parseOptionalAttrDictWithKeyword(result.attributes))
    return failure();
  result.addAttribute("symbols", parser.getBuilder().getI64IntegerAttr(symbols));
  return parser.parseRegion(*result.addRegion(), arguments);
}

void KernelOp::print(OpAsmPrinter &printer) {
  printer << " ";
  printer.printSymbolName(getSymName());
  printer << " symbols " << getSymbols() << " (";
  llvm::interleaveComma(getBody().front().getArguments(), printer.getStream(),
                        [&](BlockArgument argument) { printer.printRegionArgument(argument); });
  printer << ")";
  printer.printOptionalAttrDictWithKeyword((*this)->getAttrs(), {"sym_name", "symbols"});
  printer << " ";
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

LogicalResult KernelOp::verify() {
  Block &body = getBody().front();
  for (BlockArgument argument : body.getArguments())
    if (failed(
            verifyEncoded(*this, argument.getType(), "argument " + Twine(argument.getArgNumber()))))
      return failure();
  YieldOp yield = yieldOf(body);
  if (!yield)
    return emitOpError("body must end with shapejit.yield");
  if (yield.getValues().empty())
    return emitOpError("yields nothing");
  for (auto [i, value] : llvm::enumerate(yield.getValues())) {
    if (isa<BlockArgument>(value))
      return emitOpError() << "result " << i << " is an argument; a kernel computes its results";
    if (failed(verifyEncoded(*this, value.getType(), "result " + Twine(i))))
      return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// LaunchOp
//===----------------------------------------------------------------------===//

static LogicalResult verifyInPlace(LaunchOp op) {
  auto inPlace = op.getInPlace();
  if (!inPlace)
    return success();
  if (inPlace->size() != op.getNumResults())
    return op.emitOpError() << "says of " << inPlace->size() << " results whether they are in "
                            << "place, but has " << op.getNumResults();
  for (auto [i, operand] : llvm::enumerate(*inPlace)) {
    if (operand < -1 || operand >= static_cast<int64_t>(op.getNumOperands()))
      return op.emitOpError() << "writes result " << i << " into operand " << operand
                              << ", which it does not have";
    if (operand >= 0 && op.getOperand(operand).getType() != op.getResult(i).getType())
      return op.emitOpError() << "writes result " << i << " into operand " << operand
                              << " of another type";
  }
  return success();
}

LogicalResult LaunchOp::verify() {
  if (getSizes().getNumDims() != 0)
    return emitOpError() << "binds sizes to expressions of symbols, got " << text(getSizes());
  for (auto [i, type] : llvm::enumerate(getOperandTypes()))
    if (failed(verifyEncoded(*this, type, "operand " + Twine(i))))
      return failure();
  for (auto [i, type] : llvm::enumerate(getResultTypes()))
    if (failed(verifyEncoded(*this, type, "result " + Twine(i))))
      return failure();
  if (auto buffers = getBuffers(); buffers && buffers->size() != getNumResults())
    return emitOpError() << "names " << buffers->size() << " buffers for " << getNumResults()
                         << " results";
  return verifyInPlace(*this);
}

/// The number of elements where all sizes are constant.
static std::optional<int64_t> staticElements(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  return tensor.hasStaticShape() ? std::optional(tensor.getNumElements()) : std::nullopt;
}

static LogicalResult verifyPassed(LaunchOp op, Type outer, Type inner, const Twine &what) {
  if (cast<RankedTensorType>(outer).getElementType() !=
      cast<RankedTensorType>(inner).getElementType())
    return op.emitOpError() << what << " is " << outer << " but the kernel has " << inner;
  auto a = staticElements(outer), b = staticElements(inner);
  if (a && b && *a != *b)
    return op.emitOpError() << what << " has " << *a << " elements but the kernel has " << *b;
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  Operation *target = symbols.lookupNearestSymbolFrom(*this, getKernelAttr());
  if (!target)
    return emitOpError() << "names @" << getKernel() << ", which does not exist";
  if (isa<ModuleOp>(target)) // lowered: a module with the kernel's code
    return success();
  auto kernel = dyn_cast<KernelOp>(target);
  if (!kernel)
    return emitOpError() << "names @" << getKernel() << ", which is not a kernel";
  if (kernel.getSymbols() != getSizes().getNumResults())
    return emitOpError() << "binds " << getSizes().getNumResults() << " sizes but @" << getKernel()
                         << " has " << kernel.getSymbols() << " symbols";
  Block &body = kernel.getBody().front();
  auto results = cast<YieldOp>(body.getTerminator()).getValues();
  if (body.getNumArguments() != getNumOperands() || results.size() != getNumResults())
    return emitOpError() << "has " << getNumOperands() << " operands and " << getNumResults()
                         << " results but @" << getKernel() << " has " << body.getNumArguments()
                         << " and " << results.size();
  for (auto [i, pair] : llvm::enumerate(llvm::zip(getOperandTypes(), body.getArgumentTypes())))
    if (failed(verifyPassed(*this, std::get<0>(pair), std::get<1>(pair), "operand " + Twine(i))))
      return failure();
  for (auto [i, pair] : llvm::enumerate(llvm::zip(getResultTypes(), results.getTypes())))
    if (failed(verifyPassed(*this, std::get<0>(pair), std::get<1>(pair), "result " + Twine(i))))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// DispatchOp
//===----------------------------------------------------------------------===//

ParseResult DispatchOp::parse(OpAsmParser &parser, OperationState &result) {
  StringAttr kernel;
  AffineMapAttr axes;
  SmallVector<Attribute> buckets;
  auto parseBucket = [&] { return parser.parseAttribute(buckets.emplace_back()); };
  if (parser.parseSymbolName(kernel) || parser.parseKeyword("by") || parser.parseAttribute(axes) ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseBucket) ||
      parser.parseOptionalAttrDict(result.attributes))
    return failure();
  result.addAttribute("kernel", FlatSymbolRefAttr::get(kernel));
  result.addAttribute("axes", axes);
  result.addAttribute("buckets", parser.getBuilder().getArrayAttr(buckets));
  return success();
}

void DispatchOp::print(OpAsmPrinter &printer) {
  printer << " ";
  printer.printSymbolName(getKernel());
  printer << " by " << getAxesAttr() << " [";
  printer.increaseIndent();
  llvm::interleave(
      getBuckets(), printer.getStream(),
      [&](Attribute bucket) {
        printer.printNewline();
        printer << bucket;
      },
      ",");
  printer.decreaseIndent();
  printer.printNewline();
  printer << "]";
  printer.printOptionalAttrDict((*this)->getAttrs(), {"kernel", "axes", "buckets"});
}

static bool overlap(BucketAttr a, BucketAttr b) {
  for (size_t i = 0, rank = a.getLower().size(); i < rank; ++i)
    if (a.getUpper()[i] < b.getLower()[i] || b.getUpper()[i] < a.getLower()[i])
      return false;
  return true;
}

LogicalResult DispatchOp::verify() {
  if (getAxes().getNumDims() != 0)
    return emitOpError() << "decides by expressions of the kernel's symbols, got "
                         << text(getAxes());
  if (getBuckets().empty())
    return emitOpError("has no buckets");
  size_t rank = getAxes().getNumResults();
  auto buckets = llvm::to_vector(getBuckets().getAsRange<BucketAttr>());
  for (auto [i, bucket] : llvm::enumerate(buckets)) {
    if (bucket.getLower().size() != rank)
      return emitOpError() << "bucket " << i << " has rank " << bucket.getLower().size()
                           << " but there are " << rank << " axes";
    for (size_t j = 0; j < i; ++j)
      if (overlap(buckets[j], bucket))
        return emitOpError() << "buckets " << j << " (\"" << buckets[j].getVariant() << "\") and "
                             << i << " (\"" << bucket.getVariant() << "\") overlap";
  }
  return success();
}

LogicalResult DispatchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  Operation *target = symbols.lookupNearestSymbolFrom(*this, getKernelAttr());
  if (!target)
    return emitOpError() << "names @" << getKernel() << ", which does not exist";
  // The first dispatch of a kernel is the one that stays.
  for (auto other : cast<ModuleOp>((*this)->getParentOp()).getOps<DispatchOp>()) {
    if (other == *this)
      break;
    if (other.getKernel() == getKernel())
      return emitOpError() << "is the second one of @" << getKernel();
  }
  if (isa<ModuleOp>(target)) // lowered: a module with the kernel's code
    return success();
  auto kernel = dyn_cast<KernelOp>(target);
  if (!kernel)
    return emitOpError() << "names @" << getKernel() << ", which is not a kernel";
  if (getAxes().getNumSymbols() > kernel.getSymbols())
    return emitOpError() << "reads s" << getAxes().getNumSymbols() - 1 << " but @" << getKernel()
                         << " has " << kernel.getSymbols() << " symbols";
  return success();
}

#define GET_OP_CLASSES
#include "shapejit/ShapeJitOps.cpp.inc"
