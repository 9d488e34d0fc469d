// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_BASE_TD
#define SHAPEJIT_BASE_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/TensorEncoding.td"

def ShapeJit_Dialect : Dialect {
  let name = "shapejit";
  let cppNamespace = "::shapejit";
  let summary = "Tensor programs whose shapes are symbolic expressions.";
  let description = [{
    A program in this dialect is a function over ranked tensors whose sizes are
    expressions of module-level symbols. Every ranked tensor carries its sizes in
    its encoding (`#shapejit.shape`), so a pass never has to rediscover that two
    dynamic dimensions are equal.

    Data movement is written as index maps: `view` is one map, and the compute ops
    (`loop`, `gemm`, `conv`, `attention`) read each operand through a map of their own. In
    every map, symbol `s<i>` is the module symbol with id `i`; inside a `kernel` it
    is the kernel's local symbol `i`, which `launch` binds.
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 1;
  let extraClassDeclaration = [{
    /// Symbol ids are below this bound, so that `s<id>` can be parsed.
    static constexpr unsigned kMaxSymbols = 256;
    void registerAttributes();
  }];
}

class ShapeJit_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<ShapeJit_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

class ShapeJit_Op<string mnemonic, list<Trait> traits = []>
    : Op<ShapeJit_Dialect, mnemonic, traits>;

def ShapeJit_ShapeAttr : ShapeJit_Attr<"Shape", "shape",
    [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "sizes of a tensor as expressions of symbols";
  let description = [{
    One affine expression a dimension, over symbols only. As the encoding of a
    tensor type its rank must be the tensor's, a constant expression must equal a
    static dimension, and any other expression belongs to a dynamic one.

    ```mlir
    tensor<?x?x768xf32, #shapejit.shape<[s0, s1 * 2, 768]>>
    ```
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::AffineExpr">:$dims);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def ShapeJit_BufferAttr : ShapeJit_Attr<"Buffer", "buffer"> {
  let summary = "where a launch writes a result: an arena slot, an output or an input";
  let description = [{
    `#shapejit.buffer<arena 3>` is slot 3 of the program's arena (slots are listed in
    the function's `shapejit.arena` attribute); `#shapejit.buffer<output 0>` is the
    memory the caller gave for result 0; `#shapejit.buffer<input 1>` is that of input 1
    (inputs are counted among each other), which the program changes in place.
  }];
  let parameters = (ins StringRefParameter<"`arena`, `output` or `input`">:$space,
                        "int64_t":$index);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def ShapeJit_BucketAttr : ShapeJit_Attr<"Bucket", "bucket"> {
  let summary = "a box of sizes that one variant of a kernel serves";
  let description = [{
    The inclusive lower and upper corner of the box, one value an axis (`?` as an upper
    value: no bound), the name of the variant that serves it, and why it was chosen.

    ```mlir
    #shapejit.bucket<[1, 64], [16, ?], "small_m_128x16x64", "3.2 us, bound by bytes">
    ```
  }];
  let parameters = (ins
    ArrayRefParameter<"int64_t", "lowest size on each axis">:$lower,
    ArrayRefParameter<"int64_t", "highest size on each axis, or kUnbounded">:$upper,
    StringRefParameter<"the variant's name">:$variant,
    StringRefParameter<"why it serves this box">:$reason
  );
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The upper corner on an axis without a bound.
    static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  }];
}

def ShapeJit_Maps : TypedArrayAttrBase<AffineMapAttr, "array of index maps">;

#endif // SHAPEJIT_BASE_TD
