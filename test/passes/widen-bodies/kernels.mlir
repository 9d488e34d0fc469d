// RUN: shapejit-opt %s --split-input-file --shapejit-widen-bodies | FileCheck %s

// What one loop rounds for others of its kernel is passed on as f32; what is stored is rounded. A
// reduction takes part: the largest element as well as what is divided by the sum.

!x = tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
!h = tensor<?xbf16, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>

// CHECK-LABEL: shapejit.kernel @softmax
shapejit.kernel @softmax symbols 1 (%x: !x) {
  // CHECK: %[[TWICE:.*]] = shapejit.loop over [s0, 8]
  // CHECK-NEXT: ins(%{{.*}} : tensor<?x8xbf16
  // CHECK-NEXT: outs(#{{.*}} : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
  // CHECK-NEXT: ^bb0(%[[X:.*]]: bf16):
  // CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[X]] : bf16 to f32
  // CHECK-NEXT: %[[SUM:.*]] = arith.addf %[[WIDE]], %[[WIDE]] : f32
  // CHECK-NEXT: shapejit.yield %[[SUM]] : f32
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: bf16):
    %w = arith.extf %v : bf16 to f32
    %s = arith.addf %w, %w : f32
    %h = arith.truncf %s : f32 to bf16
    shapejit.yield %h : bf16
  }
  // CHECK: %[[MOST:.*]] = shapejit.loop
  // CHECK-NEXT: ins(%[[TWICE]] at
  // CHECK-NEXT: outs(max #{{.*}} : tensor<?xf32, #shapejit.shape<[s0]>>)
  // CHECK-NEXT: ^bb0(%[[T:.*]]: f32):
  // CHECK-NEXT: shapejit.yield %[[T]] : f32
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(max #row : !h) {
  ^bb0(%v: bf16):
    shapejit.yield %v : bf16
  }
  // CHECK: %[[TOTAL:.*]] = shapejit.loop
  // CHECK-NEXT: ins(%[[TWICE]] at {{.*}}, %[[MOST]] at
  // CHECK: ^bb0(%[[V:.*]]: f32, %[[M:.*]]: f32):
  // CHECK-NEXT: %[[D:.*]] = arith.subf %[[V]], %[[M]] : f32
  // CHECK-NEXT: %[[E:.*]] = math.exp %[[D]] : f32
  %2 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #row : !h) outs(add #row : !r) {
  ^bb0(%v: bf16, %m: bf16):
    %a = arith.extf %v : bf16 to f32
    %b = arith.extf %m : bf16 to f32
    %d = arith.subf %a, %b : f32
    %e = math.exp %d : f32
    shapejit.yield %e : f32
  }
  // CHECK: shapejit.loop
  // CHECK: outs(#{{.*}} : tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>)
  // CHECK: %[[OUT:.*]] = arith.truncf %{{.*}} : f32 to bf16
  // CHECK-NEXT: shapejit.yield %[[OUT]] : bf16
  %3 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #row : !h, %2 at #row : !r) outs(#id : !x) {
  ^bb0(%v: bf16, %m: bf16, %t: f32):
    %a = arith.extf %v : bf16 to f32
    %b = arith.extf %m : bf16 to f32
    %d = arith.subf %a, %b : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %t : f32
    %h = arith.truncf %q : f32 to bf16
    shapejit.yield %h : bf16
  }
  shapejit.yield %3 : !x
}

// -----

// What leaves the kernel keeps its type, and so do its readers; so does what was not rounded, and
// what a body reads at an index of its own.

!x = tensor<?x8xf16, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
!c = tensor<?xf16, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>

// CHECK-LABEL: shapejit.kernel @stored
shapejit.kernel @stored symbols 1 (%x: !x) {
  // CHECK: outs(#{{.*}} : tensor<?x8xf16
  // CHECK: arith.truncf
  // CHECK: outs(max #{{.*}} : tensor<?xf16
  // CHECK: outs(#{{.*}} : tensor<?xf16
  // CHECK: arith.truncf
  // CHECK: outs(add #{{.*}} : tensor<?xf32
  // CHECK-NEXT: ^bb0(%{{.*}}: f16, %{{.*}}: f16):
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f16):
    %w = arith.extf %v : f16 to f32
    %s = math.exp %w : f32
    %h = arith.truncf %s : f32 to f16
    shapejit.yield %h : f16
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(max #row : !c) {
  ^bb0(%v: f16):
    shapejit.yield %v : f16
  }
  %2 = shapejit.loop over [s0] ins(%1 at affine_map<(d0) -> (d0)> : !c) outs(affine_map<(d0) -> (d0)> : !c) {
  ^bb0(%v: f16):
    %w = arith.extf %v : f16 to f32
    %s = math.exp %w : f32
    %h = arith.truncf %s : f32 to f16
    shapejit.yield %h : f16
  }
  %3 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #row : !c) outs(add #row : !r) {
  ^bb0(%v: f16, %m: f16):
    %i = shapejit.index 0
    %c = tensor.extract %2[%i] : !c
    %a = arith.extf %v : f16 to f32
    %b = arith.extf %m : f16 to f32
    %d = arith.extf %c : f16 to f32
    %e = arith.addf %a, %b : f32
    %f = arith.addf %d, %e : f32
    shapejit.yield %f : f32
  }
  shapejit.yield %0, %3 : !x, !r
}
