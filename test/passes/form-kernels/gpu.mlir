// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --split-input-file --mlir-print-local-scope | FileCheck %s
// RUN: sed 's/cuda:sm_90a/cpu/' %s | shapejit-opt --shapejit-form-kernels --split-input-file | FileCheck %s --check-prefix=CPU

// On a GPU small kernels that need not be apart are one: the mask of the rows joins their norm; the
// sum by which rows are divided joins what divides, though its columns are others.

module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.symbol @batch {id = 0, min = 1, max = 8}
  shapejit.symbol @tokens {id = 1, min = 1, max = 64}

  // CHECK: shapejit.kernel @rows0 symbols 1 (%[[N:.*]]: tensor<?xi64, {{.*}}>, %[[X:.*]]: tensor<?x8xf32
  // CHECK: %[[MASK:.*]] = shapejit.loop over [s0]
  // CHECK: %[[SUM:.*]] = shapejit.loop over [s0, 8]
  // CHECK: %[[Y:.*]] = shapejit.loop over [s0, 8]
  // CHECK: shapejit.yield %[[MASK]], %[[Y]] : tensor<?xi1, #shapejit.shape<[s0]>>, tensor<?x8xf32
  // CHECK: shapejit.kernel @rows1 symbols 2 (%{{.*}}: tensor<?x?xf32, #shapejit.shape<[s0, s1]>>, %{{.*}}: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
  // CHECK: %[[COUNT:.*]] = shapejit.loop over [s0, s1]
  // CHECK: %[[MEAN:.*]] = shapejit.loop over [s0, 8]
  // CHECK: ins(%{{.*}}, %[[COUNT]] at
  // CHECK: %[[NORM:.*]] = shapejit.loop over [s0, 8]
  // CHECK: shapejit.yield %[[MEAN]], %[[NORM]]
  // CHECK-NOT: shapejit.kernel
  // CHECK: func.func @main
  // CHECK: %{{.*}}:2 = shapejit.launch @rows0
  // CHECK: %{{.*}}:2 = shapejit.launch @rows1

  // CPU: shapejit.kernel @pointwise0
  // CPU: shapejit.kernel @rows0
  // CPU: shapejit.kernel @rows1
  // CPU: shapejit.kernel @rows2
  func.func @main(%n: tensor<?xi64, #shapejit.shape<[s0 * s1]>>, %x: tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>,
                  %m: tensor<?x?xf32, #shapejit.shape<[s0, s1]>>, %v: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
      -> (tensor<?xi1, #shapejit.shape<[s0 * s1]>>, tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>,
          tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, tensor<?xf32, #shapejit.shape<[s0]>>) {
    %mask = shapejit.loop over [s0 * s1] ins(%n at affine_map<(d0) -> (d0)> : tensor<?xi64, #shapejit.shape<[s0 * s1]>>)
        outs(affine_map<(d0) -> (d0)> : tensor<?xi1, #shapejit.shape<[s0 * s1]>>) {
    ^bb0(%a: i64):
      %z = arith.constant 0 : i64
      %b = arith.cmpi ne, %a, %z : i64
      shapejit.yield %b : i1
    }
    %sum = shapejit.loop over [s0 * s1, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>)
        outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0 * s1]>>) {
    ^bb0(%a: f32):
      shapejit.yield %a : f32
    }
    %y = shapejit.loop over [s0 * s1, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>,
        %sum at affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0 * s1]>>)
        outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>) {
    ^bb0(%a: f32, %s: f32):
      %b = arith.divf %a, %s : f32
      shapejit.yield %b : f32
    }
    %count = shapejit.loop over [s0, s1] ins(%m at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>)
        outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%a: f32):
      shapejit.yield %a : f32
    }
    %mean = shapejit.loop over [s0, 8] ins(%v at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>,
        %count at affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
        outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
    ^bb0(%a: f32, %s: f32):
      %b = arith.divf %a, %s : f32
      shapejit.yield %b : f32
    }
    %norm = shapejit.loop over [s0, 8] ins(%mean at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
        outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%a: f32):
      %b = arith.mulf %a, %a : f32
      shapejit.yield %b : f32
    }
    return %mask, %y, %mean, %norm : tensor<?xi1, #shapejit.shape<[s0 * s1]>>, tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>,
        tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, tensor<?xf32, #shapejit.shape<[s0]>>
  }
}

// -----

// Neighbours that are pointwise become one; those between which something else runs, or of which one
// reads the other, stay apart.

module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.symbol @n {id = 0, min = 1, max = 64}

  // CHECK: shapejit.kernel @pointwise0 symbols 1
  // CHECK: math.cos
  // CHECK: math.sin
  // CHECK: shapejit.kernel @rows0
  // CHECK-NOT: math.exp
  // CHECK: shapejit.kernel @pointwise1
  // CHECK: math.exp
  // CHECK-LABEL: func.func @neighbours
  // CHECK-COUNT-3: shapejit.launch
  // CHECK-NOT: shapejit.launch
  func.func @neighbours(%x: tensor<?xf32, #shapejit.shape<[s0]>>, %v: tensor<16xf32, #shapejit.shape<[16]>>) -> (tensor<?xf32, #shapejit.shape<[s0]>>,
      tensor<16xf32, #shapejit.shape<[16]>>, tensor<f32, #shapejit.shape<[]>>, tensor<16xf32, #shapejit.shape<[16]>>) {
    %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
        outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%a: f32):
      %b = math.cos %a : f32
      shapejit.yield %b : f32
    }
    %1 = shapejit.loop over [16] ins(%v at affine_map<(d0) -> (d0)> : tensor<16xf32, #shapejit.shape<[16]>>)
        outs(affine_map<(d0) -> (d0)> : tensor<16xf32, #shapejit.shape<[16]>>) {
    ^bb0(%a: f32):
      %b = math.sin %a : f32
      shapejit.yield %b : f32
    }
    %2 = shapejit.loop over [s0] ins(%0 at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
        outs(max affine_map<(d0) -> ()> : tensor<f32, #shapejit.shape<[]>>) {
    ^bb0(%a: f32):
      shapejit.yield %a : f32
    }
    %3 = shapejit.loop over [16] ins(%1 at affine_map<(d0) -> (d0)> : tensor<16xf32, #shapejit.shape<[16]>>)
        outs(affine_map<(d0) -> (d0)> : tensor<16xf32, #shapejit.shape<[16]>>) {
    ^bb0(%a: f32):
      %b = math.exp %a : f32
      shapejit.yield %b : f32
    }
    return %0, %1, %2, %3 : tensor<?xf32, #shapejit.shape<[s0]>>, tensor<16xf32, #shapejit.shape<[16]>>, tensor<f32, #shapejit.shape<[]>>, tensor<16xf32, #shapejit.shape<[16]>>
  }
}

// -----

// A loop over the rows that needs what comes after the cluster cannot join it.

module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.symbol @n {id = 0, min = 1, max = 64}

  // CHECK-LABEL: func.func @later
  // CHECK: shapejit.launch @rows0
  // CHECK: shapejit.launch @gemm0
  // CHECK: shapejit.launch @pointwise0
  func.func @later(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %w: tensor<8x1xf32, #shapejit.shape<[8, 1]>>)
      -> tensor<?xf32, #shapejit.shape<[s0]>> {
    %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
        outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%a: f32):
      shapejit.yield %a : f32
    }
    %1 = shapejit.gemm over [s0, 1, 8]
        lhs(%0 at affine_map<(d0, d1, d2) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
        rhs(%w at affine_map<(d0, d1, d2) -> (d2, d1)> : tensor<8x1xf32, #shapejit.shape<[8, 1]>>) -> tensor<?x1xf32, #shapejit.shape<[s0, 1]>>
    %2 = shapejit.loop over [s0] ins(%1 at affine_map<(d0) -> (d0, 0)> : tensor<?x1xf32, #shapejit.shape<[s0, 1]>>)
        outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%a: f32):
      %b = math.exp %a : f32
      shapejit.yield %b : f32
    }
    return %2 : tensor<?xf32, #shapejit.shape<[s0]>>
  }
}

// -----

// A mask over [batch, tokens] joins a norm of batch*tokens rows. One that asks for an index stays
// over two dims, and by itself.

module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.symbol @batch {id = 0, min = 1, max = 8}
  shapejit.symbol @tokens {id = 1, min = 1, max = 64}

  // CHECK: shapejit.kernel @rows0 symbols 1
  // CHECK: shapejit.loop over [s0]
  // CHECK: shapejit.loop over [s0, 8]
  // CHECK: shapejit.kernel @pointwise0 symbols 2
  // CHECK-LABEL: func.func @mask
  // CHECK-SAME: (%{{.*}}, %[[N:.*]]: tensor<?x?xi64
  // CHECK: %[[FLAT:.*]] = shapejit.view %[[N]] at {{.*}} -> tensor<?xi64, #shapejit.shape<[s0 * s1]>>
  // CHECK: %[[ROWS:.*]]:2 = shapejit.launch @rows0 {{.*}}(%[[FLAT]],
  // CHECK: %[[MASK:.*]] = shapejit.view %[[ROWS]]#0 at {{.*}} -> tensor<?x?xi1, #shapejit.shape<[s0, s1]>>
  // CHECK: return %{{.*}}, %[[MASK]],
  func.func @mask(%x: tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>, %n: tensor<?x?xi64, #shapejit.shape<[s0, s1]>>)
      -> (tensor<?xf32, #shapejit.shape<[s0 * s1]>>, tensor<?x?xi1, #shapejit.shape<[s0, s1]>>, tensor<?x?xi1, #shapejit.shape<[s0, s1]>>) {
    %0 = shapejit.loop over [s0, s1] ins(%n at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xi64, #shapejit.shape<[s0, s1]>>)
        outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xi1, #shapejit.shape<[s0, s1]>>) {
    ^bb0(%a: i64):
      %z = arith.constant 0 : i64
      %b = arith.cmpi ne, %a, %z : i64
      shapejit.yield %b : i1
    }
    %1 = shapejit.loop over [s0, s1] ins(%n at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xi64, #shapejit.shape<[s0, s1]>>)
        outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xi1, #shapejit.shape<[s0, s1]>>) {
    ^bb0(%a: i64):
      %i = shapejit.index 1
      %j = arith.index_cast %i : index to i64
      %b = arith.cmpi slt, %j, %a : i64
      shapejit.yield %b : i1
    }
    %2 = shapejit.loop over [s0 * s1, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>)
        outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0 * s1]>>) {
    ^bb0(%a: f32):
      shapejit.yield %a : f32
    }
    return %2, %0, %1 : tensor<?xf32, #shapejit.shape<[s0 * s1]>>, tensor<?x?xi1, #shapejit.shape<[s0, s1]>>, tensor<?x?xi1, #shapejit.shape<[s0, s1]>>
  }
}
