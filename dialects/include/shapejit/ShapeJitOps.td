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

def ShapeJit_ConvOp : ShapeJit_Op<"conv", [Pure]> {
  let summary = "a convolution with an epilogue";
  let description = [{
    One to three spatial dimensions. The space is [batch n, groups g, output pixels o..,
    output channels f of a group, input channels c of a group, taps t..], and `image`
    holds the spatial sizes of the input. Maps: the input over (n, g, p.., c), where p
    is a pixel of the image; the weight over (g, f, c, t..); the extras over
    (n, g, o.., f); and, last, the result's: where element (n, g, o.., f) is written.
    So NCHW, NHWC, a slice of a tensor and a flipped kernel are all maps, and all
    arithmetic between pixels is in four lists with an entry each spatial dimension:

    ```
    result[n, g, o.., f] = epilogue(sum over c, t.. of input[n, g, p.., c] * weight[g, f, c, t..])
    p = (o * stride + t * dilation - padding.low) / lhs_dilation
    ```

    A product whose p has a remainder or lies outside of the image is left out: the
    image is surrounded by zeros, and `lhs_dilation` puts zeros between its pixels (a
    transposed convolution of stride s is a convolution of `lhs_dilation` s with a flipped
    kernel). `padding` is (low, high); high says no more than how many pixels the result
    has, and both may be negative, which crops:

    ```
    o < floor(((image - 1) * lhs_dilation + 1 + low + high - (taps - 1) * dilation - 1) / stride) + 1
    ```

    The epilogue's arguments are the accumulator, then one scalar an extra operand; it
    yields the result's scalar. Products are summed in `accumulate` (default: f32 for f16,
    bf16 and f32; else the operands' own type). Lists whose entries are all 1 (`padding`:
    all (0, 0)) are not written.

    ```mlir
    %y = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, 64, 3, 7] image [s1] stride [2] padding [(3, 3)]
        input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : tensor<?x3x?xf32, #shapejit.shape<[s0, 3, s1]>>)
        weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : tensor<64x3x7xf32, #shapejit.shape<[64, 3, 7]>>)
        extras(%b at affine_map<(n, g, o, f) -> (f)> : tensor<64xf32, #shapejit.shape<[64]>>)
        epilogue {
    ^bb0(%acc: f32, %bias: f32):
      %0 = arith.addf %acc, %bias : f32
      shapejit.yield %0 : f32
    } -> affine_map<(n, g, o, f) -> (n, o, f)> : tensor<?x?x64xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, 64]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$input,
    AnyRankedTensor:$weight,
    Variadic<AnyRankedTensor>:$extras,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_ShapeAttr:$image,
    ShapeJit_Maps:$maps,
    DenseI64ArrayAttr:$strides,
    DenseI64ArrayAttr:$dilations,
    DenseI64ArrayAttr:$padding,
    DenseI64ArrayAttr:$lhs_dilations,
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
    /// The number of spatial dimensions.
    unsigned getSpatialRank() { return getImage().getDims().size(); }
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

    `lengths`, over (b, h), says how many of the n keys there are for a batch and head;
    others are not read. With the unit attribute `is_initialized` a kernel may read them: they
    are numbers, whose products with a weight of 0 are 0. `starts` are two tensors of batch + 1 integers, over (b): the
    queries of batch b are those from `starts[0][b]` to `starts[0][b + 1]` of all, its
    keys those from `starts[1][b]` to `starts[1][b + 1]`. The third index of the maps of
    q and result (k and v) then counts the queries (keys) of all batches; m and n of the
    space are the most that a batch has. With the unit attribute `from_end` the causal
    offset is added to how many more keys than queries a batch (and head) has. With lengths
    that is the length as it is given, also where it is more than n: the last queries of a
    cache that is full see all of it.

    ```mlir
    %o = shapejit.attention over [s0, 12, s1, s1, 32, 32]
        q(%q at #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
        k(%k at #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
        v(%v at #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
        {scale = 0.17 : f64} -> #q : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
    ```

    Operands after v are, in this order, the mask if there is one, the lengths if
    `has_lengths`, the two starts if `is_ragged`; the custom assembly shows by names which
    ones there are: `mask(..)`, `lengths(..)`, `starts(.., ..)`.
  }];
  let arguments = (ins
    AnyRankedTensor:$q,
    AnyRankedTensor:$k,
    AnyRankedTensor:$v,
    Variadic<AnyRankedTensor>:$others,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps,
    F64Attr:$scale,
    OptionalAttr<AffineMapAttr>:$causal,
    UnitAttr:$from_end,
    UnitAttr:$has_lengths,
    UnitAttr:$is_ragged,
    UnitAttr:$is_initialized
  );
  let results = (outs AnyRankedTensor:$result);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// How many of the operands after v are masks.
    size_t countMasks() {
      size_t known = (getHasLengths() ? 1 : 0) + (getIsRagged() ? 2 : 0);
      return getOthers().size() < known ? 0 : getOthers().size() - known;
    }
  }];
}

def ShapeJit_PackOp : ShapeJit_Op<"pack", [Pure]> {
  let summary = "packs a weight into panels, once, when the weight is bound";
  let description = [{
    A weight is seen as a tensor over `space`, read at `map`; its dimension `dim` is cut
    into panels, whose columns come last. Where `dim` is the first one, element
    (p, k.., j) of the result is the weight at (p * panel + j, k..); past the end of the
    dimension it is zero. A gemm reads the packed weight at (n floordiv panel, k, n mod panel).

    Without a space, the weight is a matrix: its dimension `dim` is cut, the other one is k.

    ```mlir
    %p = shapejit.pack %w {dim = 0, panel = 32}
        : tensor<384x1536xf32, #shapejit.shape<[384, 1536]>> -> tensor<12x1536x32xf32, #shapejit.shape<[12, 1536, 32]>>
    %q = shapejit.pack %k over [2, 64, 3, 8] at affine_map<(g, f, t, c) -> (g * 64 + f, c, t)> {dim = 1, panel = 32}
        : tensor<128x8x3xf32, #shapejit.shape<[128, 8, 3]>> -> tensor<2x2x3x8x32xf32, #shapejit.shape<[2, 2, 3, 8, 32]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$source,
    OptionalAttr<ShapeJit_ShapeAttr>:$space,
    OptionalAttr<AffineMapAttr>:$map,
    ConfinedAttr<I64Attr, [IntNonNegative]>:$dim,
    ConfinedAttr<I64Attr, [IntPositive]>:$panel
  );
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $source (`over` custom<Space>($space)^ `at` $map)? attr-dict `:` type($source) `->` type($result)
  }];
  let hasVerifier = 1;
}

def ShapeJit_JoinOp : ShapeJit_Op<"join", [Pure]> {
  let summary = "joins weights along a dimension, once, when they are bound";
  let description = [{
    The weights lie one after the other along dimension `dim`; their other sizes are equal.
    Products of one input with several weights so become one product.

    ```mlir
    %w = shapejit.join %q, %k along 0
        : (tensor<384x384xf32, #shapejit.shape<[384, 384]>>, tensor<128x384xf32, #shapejit.shape<[128, 384]>>)
        -> tensor<512x384xf32, #shapejit.shape<[512, 384]>>
    ```
  }];
  let arguments = (ins
    Variadic<AnyRankedTensor>:$sources,
    ConfinedAttr<I64Attr, [IntNonNegative]>:$dim
  );
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $sources `along` $dim attr-dict `:` functional-type($sources, $result)
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Scans, sorts
//===----------------------------------------------------------------------===//

def ShapeJit_ScanOp : ShapeJit_Op<"scan", [Pure]> {
  let summary = "running combinations along the last dimension";
  let description = [{
    The last dimension of the space is the row. Element i of a row of the result
    combines elements 0 to i of the input's row: `add`, `mul`, `max`, `min`, or
    `logaddexp`, the logarithm of the sum of exponentials. `max` and `min` propagate
    NaN. They may have a second result of i64, the place of the element that a
    value is taken from: the last one of equals.

    ```mlir
    %sum = shapejit.scan add over [s0, 384]
        ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x384xf32, #shapejit.shape<[s0, 384]>>)
        -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$input,
    StrAttr:$kind,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps
  );
  let results = (outs AnyRankedTensor:$values, Optional<AnyRankedTensor>:$indices);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def ShapeJit_SortOp : ShapeJit_Op<"sort", [Pure]> {
  let summary = "sorts the rows of the last dimension, or finds the head of that";
  let description = [{
    The last dimension of the space is the row. The results are the first k elements
    of each sorted row, and their places in the input's row as i64; k is the last size
    of the results, at most that of the row. So one op is a sort (all of the row), a
    top-k (`descending`, a short head) and what lies between.

    The order is stable, ascending or `descending`: equals stay in the order of the
    row. NaN is greater than all numbers; zeros of both signs are equal.

    ```mlir
    %v, %i = shapejit.sort over [s0, 32000]
        ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x32000xf32, #shapejit.shape<[s0, 32000]>>)
        {descending}
        -> tensor<?x50xf32, #shapejit.shape<[s0, 50]>>, tensor<?x50xi64, #shapejit.shape<[s0, 50]>>
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$input,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps,
    UnitAttr:$descending
  );
  let results = (outs AnyRankedTensor:$values, AnyRankedTensor:$indices);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

def ShapeJit_ScatterOp : ShapeJit_Op<"scatter", [Pure]> {
  let summary = "a tensor with some of its elements replaced";
  let description = [{
    The result is `dest`, with element `map(i, p)` replaced by the source's element at `i`
    for every index `i` of the space. The source and the positions are read at their maps
    over the space; dest's map is over the space's dimensions and then one dimension a
    position, whose value is what the position tensor holds. An element whose index lies
    outside of dest is left out. Of several elements for one index any one stays.

    Only the elements that are replaced are written: the result has the memory of `dest`.
    `shapejit-form-kernels` sees to it that nobody needs the old value any more then, by a
    copy where somebody does.

    ```mlir
    %new = shapejit.scatter over [s0, 8, s1, 64]
        from(%k at #id : tensor<?x8x?x64xf32, #shapejit.shape<[s0, 8, s1, 64]>>)
        by(%rows at affine_map<(d0, d1, d2, d3) -> (d2)> : tensor<?xi64, #shapejit.shape<[s1]>>)
        into(%cache at affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d4, d3)>
            : tensor<?x8x512x64xf32, #shapejit.shape<[s0, 8, 512, 64]>>)
    ```
  }];
  let arguments = (ins
    AnyRankedTensor:$source,
    Variadic<AnyRankedTensor>:$positions,
    AnyRankedTensor:$dest,
    ShapeJit_ShapeAttr:$space,
    ShapeJit_Maps:$maps
  );
  let results = (outs AnyRankedTensor:$result);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

def ShapeJit_YieldOp : ShapeJit_Op<"yield", [Pure, Terminator, ReturnLike,
    ParentOneOf<["LoopOp", "GemmOp", "ConvOp", "KernelOp"]>]> {
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
    argument has the same element type and the same number of elements. `in_place` says
    of each result in which operand's memory it is written, -1 for memory of its own.
    `buffers`, once memory is planned, says where each result is written.

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
    OptionalAttr<DenseI64ArrayAttr>:$in_place,
    OptionalAttr<TypedArrayAttrBase<ShapeJit_BufferAttr, "array of buffers">>:$buffers
  );
  let results = (outs Variadic<AnyRankedTensor>:$outs);
  let assemblyFormat = [{
    $kernel $sizes `(` $operands `)` attr-dict `:` functional-type($operands, $outs)
  }];
  let hasVerifier = 1;
}

def ShapeJit_DispatchOp : ShapeJit_Op<"dispatch", [HasParent<"::mlir::ModuleOp">,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the variants of a kernel by size";
  let description = [{
    `axes` are the sizes that decide, as expressions of the kernel's own symbols; each
    bucket is a box of them and names the variant that serves it. Boxes do not overlap. A
    kernel whose sizes are all constant has no axes and one bucket, `<[], [], ..>`.

    ```mlir
    shapejit.dispatch @gemm0 by affine_map<()[s0] -> (s0)> [
      #shapejit.bucket<[1], [16], "small_m_128x16x64", "3.2 us, bound by bytes">,
      #shapejit.bucket<[17], [?], "persistent_128x256x64", "least waves">
    ]
    ```
  }];
  let arguments = (ins
    FlatSymbolRefAttr:$kernel,
    AffineMapAttr:$axes,
    TypedArrayAttrBase<ShapeJit_BucketAttr, "array of buckets">:$buckets
  );
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

#endif // SHAPEJIT_OPS_TD
