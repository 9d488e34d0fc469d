// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_OPS_TD
#define SHAPEJIT_OPS_TD

include "shapejit/ShapeJitBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

//===----------------------------------------------------------------------===//
// Sizes
//===----------------------------------------------------------------------===//

def ShapeJit_SymbolOp : ShapeJit_Op<"symbol", [Symbol, HasParent<"::mlir::ModuleOp">]> {
  let summary = "declares a symbolic size";
  let description = [{
    Ids are dense, start at 0, and are never renumbered: `s<id>` in a shape or a map
    is this symbol. `max` is inclusive; a symbol without one is unbounded. `opt` is
    the size the user expects most. `divisor` divides every legal value. A symbol
    found equal to an earlier one stays, with `equal_to`.

    A derived symbol holds what an affine expression cannot say: `max`, `min`,
    `floordiv`, `ceildiv` or `mod` of two expressions of earlier symbols. The host
    program evaluates it.

    ```mlir
    shapejit.symbol @batch {id = 0, min = 1, max = 64}
    shapejit.symbol @height {id = 1, min = 32, max = 1024, divisor = 32}
    shapejit.symbol @d2 {id = 2} = max(s1 - 2, 0)
    ```
  }];
  let arguments = (ins
    SymbolNameAttr:$sym_name,
    I64Attr:$id,
    OptionalAttr<I64Attr>:$min,
    OptionalAttr<I64Attr>:$max,
    OptionalAttr<I64Attr>:$divisor,
    OptionalAttr<I64Attr>:$opt,
    OptionalAttr<I64Attr>:$equal_to,
    OptionalAttr<StrAttr>:$derived,
    OptionalAttr<AffineMapAttr>:$arguments
  );
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def ShapeJit_ConstraintOp : ShapeJit_Op<"constraint", [HasParent<"::mlir::ModuleOp">]> {
  let summary = "a fact that relates symbols";
  let description = [{
    Holds for every legal call. The runtime checks it; passes may rely on it.

    ```mlir
    shapejit.constraint affine_set<()[s0, s1] : (s0 - s1 >= 0)> because "mask covers the cache"
    ```
  }];
  let arguments = (ins IntegerSetAttr:$set, OptionalAttr<StrAttr>:$reason);
  let assemblyFormat = "$set (`because` $reason^)? attr-dict";
  let hasVerifier = 1;
}

def ShapeJit_SizeOp : ShapeJit_Op<"size", [Pure]> {
  let summary = "the value of a symbolic size";
  let description = [{
    ```mlir
    %n = shapejit.size affine_map<()[s0, s1] -> (s0 * s1)>
    ```
  }];
  let arguments = (ins AffineMapAttr:$expr);
  let results = (outs Index:$result);
  let assemblyFormat = "$expr attr-dict";
  let hasVerifier = 1;
  let hasFolder = 1;
}

//===----------------------------------------------------------------------===//
// Views, loops
//===----------------------------------------------------------------------===//

def ShapeJit_ViewOp : ShapeJit_Op<"view", [Pure]> {
  let summary = "reads a tensor through an index map";
  let description = [{
    Element `i` of the result is element `map(i)` of the source: one op for reshape,
    transpose, expand, slice and select. Views of views compose.

    ```mlir
    %t = shapejit.view %x at affine_map<(d0, d1) -> (d1, d0)>
        : tensor<?x8xf32, #shapejit.shape<[s0, 8]>> -> tensor<8x?xf32, #shapejit.shape<[8, s0]>>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$source, AffineMapAttr:$map);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $source `at` $map attr-dict `:` type($source) `->` type($result)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizeMethod = 1;
}

def ShapeJit_LoopOp : ShapeJit_Op<"loop", [Pure, SingleBlock]> {
  let summary = "a scalar body over an iteration space of symbolic sizes";
  let description = [{
    Pointwise ops, broadcasts, reductions and gathers. Each input is read at its map
    of the loop indices; each result is written at its map. A result without a
    combine kind has a permutation of all loop dimensions as its map. A result with
    one (`add`, `mul`, `max`, `min`, `and`, `or`) is reduced over the dimensions its
    map lacks; over an empty space it is the kind's identity; `max` and `min`
    propagate NaN. The body sees loop indices through `shapejit.index` and may read
    whole tensors of the enclosing scope with `tensor.extract`.

    ```mlir
    %sum = shapejit.loop over [s0, 384]
        ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x384xf32, #shapejit.shape<[s0, 384]>>)
        outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%v: f32):
      shapejit.yield %v : f32
    }
    ```
  }];
  let arguments = (ins
    Variadic<AnyRankedTensor>:$inputs,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps,
    StrArrayAttr:$kinds
  );
  let results = (outs Variadic<AnyRankedTensor>:$outs);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

def ShapeJit_IndexOp : ShapeJit_Op<"index", [Pure, ParentOneOf<["LoopOp"]>]> {
  let summary = "the current index of a loop dimension";
  let arguments = (ins ConfinedAttr<I64Attr, [IntNonNegative]>:$dim);
  let results = (outs Index:$result);
  let assemblyFormat = "$dim attr-dict";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Contractions
//===----------------------------------------------------------------------===//

def ShapeJit_GemmOp : ShapeJit_Op<"gemm", [Pure, AttrSizedOperandSegments]> {
  let summary = "a contraction with an epilogue";
  let description = [{
    The space is the result's dimensions (batch dimensions, then m and n) and then
    one contracted dimension k. The operands' maps are over the whole space, the
    extras' maps over the result's dimensions, so transposes, batch broadcasts and
    packed layouts are all maps. Two weights make a gated pair: two products of the
    same lhs that meet in the epilogue.

    The epilogue's arguments are the accumulators, then one scalar an extra operand;
    it yields the result's scalar. Products are summed in `accumulate` (default: f32
    for f16, bf16 and f32; else the operands' own type).

    ```mlir
    %y = shapejit.gemm over [s0, 384, 1536]
        lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x1536xf32, #shapejit.shape<[s0, 1536]>>)
        rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<384x1536xf32, #shapejit.shape<[384, 1536]>>)
        extras(%b at affine_map<(d0, d1) -> (d1)> : tensor<384xf32, #shapejit.shape<[384]>>)
        epilogue {
    ^bb0(%acc: f32, %bias: f32):
      %0 = arith.addf %acc, %bias : f32
      shapejit.yield %0 : f32
    } -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$lhs,
    Variadic<AnyRankedTensor>:$weights,
    Variadic<AnyRankedTensor>:$extras,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps,
    OptionalAttr<TypeAttr>:$accumulate
  );
  let results = (outs AnyRankedTensor:$result);
  let regions = (region MaxSizedRegion<1>:$epilogue);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
  let extraClassDeclaration = [{
    /// The type in which products are summed.
    ::mlir::Type getAccumulateType();
  }];
}

def ShapeJit_AttentionOp : ShapeJit_Op<"attention", [Pure]> {
  let summary = "scaled dot product attention";
  let description = [{
    The space is [batch, heads, queries m, keys n, head size d, value size dv]. Maps:
    q over (b, h, m, d), k over (b, h, n, d), v over (b, h, n, dv), mask over
    (b, h, m, n), and, last, the result's: where element (b, h, m, dv) is written.
    Grouped-query attention is the map `(d0, d1 floordiv 4, d2, d3)`.

    A mask of i1 keeps where true; a float mask is added to the scaled scores. With
    `causal` offset o a key n is visible to query m when n <= m + o. A query that
    sees no key gives 0.

    ```mlir
    %o = shapejit.attention over [s0, 12, s1, s1, 32, 32]
        q(%q at #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
        k(%k at #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
        v(%v at #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
        {scale = 0.17 : f64} -> #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$q,
    AnyRankedTensor:$k,
    AnyRankedTensor:$v,
    Optional<AnyRankedTensor>:$mask,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps,
    F64Attr:$scale,
    OptionalAttr<AffineMapAttr>:$causal
  );
  let results = (outs AnyRankedTensor:$result);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def ShapeJit_PackOp : ShapeJit_Op<"pack", [Pure]> {
  let summary = "packs a weight into panels, once, when the weight is bound";
  let description = [{
    Element (p, k, j) of the result is the weight at n = p * panel + j, where n is the
    weight's dimension `dim` and k the other one; past the end it is zero. A gemm
    reads the packed weight at (n floordiv panel, k, n mod panel).

    ```mlir
    %p = shapejit.pack %w {dim = 0, panel = 32}
        : tensor<384x1536xf32, #shapejit.shape<[384, 1536]>> -> tensor<12x1536x32xf32, #shapejit.shape<[12, 1536, 32]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$source,
    ConfinedAttr<I64Attr, [IntNonNegative, IntMaxValue<1>]>:$dim,
    ConfinedAttr<I64Attr, [IntPositive]>:$panel
  );
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$source attr-dict `:` type($source) `->` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

def ShapeJit_YieldOp : ShapeJit_Op<"yield", [Pure, Terminator, ReturnLike,
    ParentOneOf<["LoopOp", "GemmOp", "KernelOp"]>]> {
  let summary = "ends a body with its values";
  let arguments = (ins Variadic<AnyType>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
}

def ShapeJit_KernelOp : ShapeJit_Op<"kernel", [IsolatedFromAbove, Symbol, SingleBlock,
    HasParent<"::mlir::ModuleOp">]> {
  let summary = "a fused group of ops that runs as one kernel";
  let description = [{
    `s0` .. `s<symbols - 1>` in its body are the kernel's own symbols. Kernels whose
    text is equal but for the name are the same kernel.

    ```mlir
    shapejit.kernel @pointwise0 symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
      ...
      shapejit.yield %y : tensor<?xf32, #shapejit.shape<[s0]>>
    }
    ```
  }];
  let arguments = (ins
    SymbolNameAttr:$sym_name,
    ConfinedAttr<I64Attr, [IntNonNegative]>:$symbols
  );
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def ShapeJit_LaunchOp : ShapeJit_Op<"launch", [Pure,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "runs a kernel with its symbols bound";
  let description = [{
    `sizes` gives the values of the kernel's symbols. What passes between launches is
    contiguous memory, so an operand may regroup contiguous dimensions: the kernel's
    argument has the same element type and the same number of elements. `buffers`,
    once memory is planned, says where each result is written.

    ```mlir
    %y = shapejit.launch @gemm0 affine_map<()[s0, s1] -> (s0 * s1)> (%x, %w)
        : (tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, tensor<8x8xf32, #shapejit.shape<[8, 8]>>)
        -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
    ```
  }];
  let arguments = (ins
    FlatSymbolRefAttr:$kernel,
    AffineMapAttr:$sizes,
    Variadic<AnyRankedTensor>:$operands,
    OptionalAttr<TypedArrayAttrBase<ShapeJit_BufferAttr, "array of buffers">>:$buffers
  );
  let results = (outs Variadic<AnyRankedTensor>:$outs);
  let assemblyFormat = [{
    $kernel $sizes `(` $operands `)` attr-dict `:` functional-type($operands, $outs)
  }];
  let hasVerifier = 1;
}

#endif // SHAPEJIT_OPS_TD
