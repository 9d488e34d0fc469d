// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// C functions that Python calls through ctypes: dialect registration, attribute access,
// the optimizer driver.

#include "shapejit/ShapeJit.h"

#include "mlir/CAPI/IR.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

using namespace mlir;

#define SHAPEJIT_API extern "C" __attribute__((visibility("default")))

SHAPEJIT_API void shapejitRegisterDialect(void *registry) {
  static_cast<DialectRegistry *>(registry)->insert<shapejit::ShapeJitDialect>();
}

SHAPEJIT_API const void *shapejitShapeAttrGet(void *context, const void *const *dims,
                                              intptr_t rank) {
  SmallVector<AffineExpr> exprs;
  for (intptr_t i = 0; i < rank; ++i)
    exprs.push_back(AffineExpr(static_cast<AffineExpr::ImplType *>(const_cast<void *>(dims[i]))));
  return shapejit::ShapeAttr::get(static_cast<MLIRContext *>(context), exprs).getAsOpaquePointer();
}

/// -1 when the attribute is not a shape.
SHAPEJIT_API intptr_t shapejitShapeAttrRank(const void *attribute) {
  auto shape = dyn_cast<shapejit::ShapeAttr>(Attribute::getFromOpaquePointer(attribute));
  return shape ? static_cast<intptr_t>(shape.getDims().size()) : -1;
}

SHAPEJIT_API const void *shapejitShapeAttrDim(const void *attribute, intptr_t i) {
  auto shape = cast<shapejit::ShapeAttr>(Attribute::getFromOpaquePointer(attribute));
  return shape.getDims()[i].getAsOpaquePointer();
}

// Access to integer sets, which the bindings cannot take out of their attribute.

SHAPEJIT_API intptr_t shapejitIntegerSetSize(const void *attribute) {
  return cast<IntegerSetAttr>(Attribute::getFromOpaquePointer(attribute))
      .getValue()
      .getNumConstraints();
}

SHAPEJIT_API const void *shapejitIntegerSetConstraint(const void *attribute, intptr_t i,
                                                      int *isEquality) {
  IntegerSet set = cast<IntegerSetAttr>(Attribute::getFromOpaquePointer(attribute)).getValue();
  *isEquality = set.isEq(i);
  return set.getConstraint(i).getAsOpaquePointer();
}

/// mlir-opt with the shapejit dialect; runs at most once a process.
SHAPEJIT_API int shapejitOptMain(int argc, char **argv) {
  DialectRegistry registry;
  registerAllDialects(registry);
  registerAllExtensions(registry);
  registerAllToLLVMIRTranslations(registry);
  registry.insert<shapejit::ShapeJitDialect>();
  return failed(MlirOptMain(argc, argv, "shapejit optimizer driver\n", registry));
}
