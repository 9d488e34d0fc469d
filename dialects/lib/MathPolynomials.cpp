// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// shapejit-math-polynomials. In C++ because upstream offers its approximations as C++
// patterns only, with no registered pass.

#include "shapejit/ShapeJit.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

using namespace mlir;

namespace {

/// Replaces f32 math ops by upstream's polynomial approximations, which LLVM can
/// vectorise (a call into libm cannot be). `sin` and `cos` stay calls: the approximation
/// loses all digits for large arguments (absolute error 4e-4 at 5000), such as the
/// angles of rotary embeddings.
struct MathPolynomials : PassWrapper<MathPolynomials, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(MathPolynomials)
  StringRef getArgument() const override { return "shapejit-math-polynomials"; }
  StringRef getDescription() const override {
    return "Approximate f32 math ops (except sin and cos) by polynomials";
  }
  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<arith::ArithDialect, math::MathDialect, vector::VectorDialect>();
  }
  void runOnOperation() override {
    static constexpr StringLiteral kApproximated[] = {
        "math.exp", "math.expm1", "math.erf", "math.tanh", "math.log", "math.log1p", "math.log2"};
    auto approximated = [](StringRef name) { return llvm::is_contained(kApproximated, name); };
    RewritePatternSet patterns(&getContext());
    populateMathPolynomialApproximationPatterns(patterns, approximated);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace

extern "C" __attribute__((visibility("default"))) void shapejitRegisterMathPolynomials() {
  PassRegistration<MathPolynomials>();
}
