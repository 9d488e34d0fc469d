// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ops' parsers, printers and verifiers share.

#ifndef SHAPEJIT_UTILS_H
#define SHAPEJIT_UTILS_H

#include "shapejit/ShapeJit.h"

#include "mlir/IR/AffineExpr.h"
#include "mlir/IR/AffineMap.h"
#include "llvm/Support/raw_ostream.h"

#include <optional>

namespace shapejit {

/// `[s0, s1 * 2, 384]`, with `s<i>` as affine symbol i.
mlir::ParseResult parseSizes(mlir::AsmParser &parser,
                             llvm::SmallVectorImpl<mlir::AffineExpr> &sizes);
void printSizes(mlir::AsmPrinter &printer, llvm::ArrayRef<mlir::AffineExpr> sizes);

/// `s0 * 2 + 1`, with `s<i>` as affine symbol i.
mlir::ParseResult parseSizeExpr(mlir::AsmParser &parser, mlir::AffineExpr &expr);

/// The sizes of an attribute, for `custom<Space>`.
mlir::ParseResult parseSpace(mlir::OpAsmParser &parser, ShapeAttr &space);
void printSpace(mlir::OpAsmPrinter &printer, mlir::Operation *op, ShapeAttr space);

/// `keyword(%a at #map : type, ...)`; nothing at all when the group is empty and
/// `optional`. Maps are appended to `maps`.
struct MappedOperands {
  llvm::SmallVector<mlir::OpAsmParser::UnresolvedOperand> operands;
  llvm::SmallVector<mlir::Type> types;
  llvm::SMLoc loc;
};
mlir::ParseResult parseMappedOperands(mlir::OpAsmParser &parser, llvm::StringRef keyword,
                                      bool optional, MappedOperands &group,
                                      llvm::SmallVectorImpl<mlir::Attribute> &maps);
void printMappedOperands(mlir::OpAsmPrinter &printer, llvm::StringRef keyword,
                         mlir::ValueRange operands, llvm::ArrayRef<mlir::Attribute> maps);

/// The shape encoding of a tensor type; null when there is none.
ShapeAttr shapeOf(mlir::Type type);

/// Fails with an error on `op` unless `type` carries a symbolic shape.
mlir::LogicalResult verifyEncoded(mlir::Operation *op, mlir::Type type, const llvm::Twine &what);

/// Checks a map that reads (or writes) a tensor: its number of dims and results, and
/// that indices which are bounded by constants stay inside constant sizes.
mlir::LogicalResult verifyAccess(mlir::Operation *op, mlir::AffineMap map,
                                 llvm::ArrayRef<mlir::AffineExpr> dimSizes, mlir::Type tensor,
                                 const llvm::Twine &what);

/// Inclusive bounds of `expr` when they follow from constant dimension sizes alone.
struct Bounds {
  int64_t lower, upper;
};
std::optional<Bounds> constantBounds(mlir::AffineExpr expr,
                                     llvm::ArrayRef<mlir::AffineExpr> dimSizes);

/// An expression or a map as text: diagnostics take no affine values.
template <typename T> std::string text(T value) {
  std::string buffer;
  llvm::raw_string_ostream(buffer) << value;
  return buffer;
}

/// The yield that ends a body; null when it ends with something else, or is empty (which
/// `Block::getTerminator` does not allow).
inline YieldOp yieldOf(mlir::Block &body) {
  return body.empty() ? YieldOp() : mlir::dyn_cast<YieldOp>(body.back());
}

/// Maps of an array attribute.
inline mlir::AffineMap mapAt(mlir::ArrayAttr maps, unsigned i) {
  return mlir::cast<mlir::AffineMapAttr>(maps[i]).getValue();
}

} // namespace shapejit

#endif // SHAPEJIT_UTILS_H
