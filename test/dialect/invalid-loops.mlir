// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Views.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @plain_source(%x: tensor<?x8xf32>) -> !x {
  // expected-error @below {{source has type 'tensor<?x8xf32>', which carries no symbolic shape; every ranked tensor of a shapejit op has a #shapejit.shape encoding}}
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32> -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @plain_result(%x: !x) -> tensor<?x8xf32> {
  // expected-error @below {{result has type 'tensor<?x8xf32>', which carries no symbolic shape}}
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1)> : !x -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x8xi32, #shapejit.shape<[s0, 8]>>
func.func @converts(%x: !x) -> !y {
  // expected-error @below {{changes the element type from 'f32' to 'i32'; a view only moves elements}}
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1)> : !x -> !y
  return %0 : !y
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @dims(%x: !x) -> !x {
  // expected-error @below {{source: the map has 1 dimensions, expected 2}}
  %0 = shapejit.view %x at affine_map<(d0) -> (d0, 0)> : !x -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @results(%x: !x) -> !x {
  // expected-error @below {{source: the map has 1 results but the tensor has rank 2}}
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0)> : !x -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @past_the_end(%x: !x) -> !x {
  // expected-error @below {{source: index 1 (d1 + 1) spans [1, 8], outside of dimension 1 of size 8}}
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1 + 1)> : !x -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @before_the_start(%x: !x) -> !x {
  // expected-error @below {{source: index 0 (d1 - 1) spans [-1, 6], outside of dimension 0, which starts at 0}}
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d1 - 1, d1)> : !x -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @symbols(%x: !x) -> !x {
  // expected-error @below {{source: the map has 257 symbols, the limit is 256}}
  %0 = shapejit.view %x at affine_map<(d0, d1)[s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31, s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47, s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63, s64, s65, s66, s67, s68, s69, s70, s71, s72, s73, s74, s75, s76, s77, s78, s79, s80, s81, s82, s83, s84, s85, s86, s87, s88, s89, s90, s91, s92, s93, s94, s95, s96, s97, s98, s99, s100, s101, s102, s103, s104, s105, s106, s107, s108, s109, s110, s111, s112, s113, s114, s115, s116, s117, s118, s119, s120, s121, s122, s123, s124, s125, s126, s127, s128, s129, s130, s131, s132, s133, s134, s135, s136, s137, s138, s139, s140, s141, s142, s143, s144, s145, s146, s147, s148, s149, s150, s151, s152, s153, s154, s155, s156, s157, s158, s159, s160, s161, s162, s163, s164, s165, s166, s167, s168, s169, s170, s171, s172, s173, s174, s175, s176, s177, s178, s179, s180, s181, s182, s183, s184, s185, s186, s187, s188, s189, s190, s191, s192, s193, s194, s195, s196, s197, s198, s199, s200, s201, s202, s203, s204, s205, s206, s207, s208, s209, s210, s211, s212, s213, s214, s215, s216, s217, s218, s219, s220, s221, s222, s223, s224, s225, s226, s227, s228, s229, s230, s231, s232, s233, s234, s235, s236, s237, s238, s239, s240, s241, s242, s243, s244, s245, s246, s247, s248, s249, s250, s251, s252, s253, s254, s255, s256] -> (d0, d1)> : !x -> !x
  return %0 : !x
}

// -----

// An empty space reads nothing.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!empty = tensor<0x8xf32, #shapejit.shape<[0, 8]>>
func.func @empty(%x: !x) -> !empty {
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1 + 1)> : !x -> !empty
  return %0 : !empty
}

// -----

// Loops: results.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @repeated_dim(%x: !x) -> !x {
  // expected-error @below {{result 0: the map must list loop dimensions, each at most once, got (d0, d1) -> (d0, d0)}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
func.func @no_kind(%x: !x) -> !r {
  // expected-error @below {{result 0: the map lacks 1 loop dimensions, so the result needs a combine kind}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0)> : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !r
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
func.func @unknown_kind(%x: !x) -> !r {
  // expected-error @below {{result 0: unknown combine kind 'xor', expected add, mul, max, min, and, or}}
  %0 = "shapejit.loop"(%x) ({
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }) {space = #shapejit.shape<[s0, 8]>, kinds = ["xor"],
      maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>]} : (!x) -> !r
  return %0 : !r
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @nothing_to_combine(%x: !x) -> !x {
  // expected-error @below {{result 0: is combined by 'add' but its map has every loop dimension}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(add affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
func.func @and_of_floats(%x: !x) -> !r {
  // expected-error @below {{result 0: 'and' combines integers, got 'f32'}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(and affine_map<(d0, d1) -> (d0)> : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !r
}

// -----

!x = tensor<?x8xi1, #shapejit.shape<[s0, 8]>>
!r = tensor<?xi1, #shapejit.shape<[s0]>>
func.func @sum_of_bools(%x: !x) -> !r {
  // expected-error @below {{result 0: 'add' cannot combine i1; use and, or}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(add affine_map<(d0, d1) -> (d0)> : !r) {
  ^bb0(%v: i1):
    shapejit.yield %v : i1
  }
  return %0 : !r
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s1, 8]>>
func.func @other_size(%x: !x) -> !y {
  // expected-error @below {{result 0: dimension 0 has size s1 but the loop runs over s0}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !y) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !y
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @plain_loop_result(%x: !x) -> tensor<?x8xf32> {
  // expected-error @below {{result 0 has type 'tensor<?x8xf32>', which carries no symbolic shape}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : tensor<?x8xf32>
}

// -----

// Loops: counts and inputs.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @maps(%x: !x) -> !x {
  // expected-error @below {{has 1 maps for 1 inputs and 1 results}}
  %0 = "shapejit.loop"(%x) ({
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }) {space = #shapejit.shape<[s0, 8]>, kinds = ["none"],
      maps = [affine_map<(d0, d1) -> (d0, d1)>]} : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @kinds(%x: !x) -> !x {
  // expected-error @below {{has 0 kinds for 1 results}}
  %0 = "shapejit.loop"(%x) ({
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }) {space = #shapejit.shape<[s0, 8]>, kinds = [],
      maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>]} : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @no_results(%x: !x) {
  // expected-error @below {{needs a result}}
  "shapejit.loop"(%x) ({
  ^bb0(%v: f32):
    shapejit.yield
  }) {space = #shapejit.shape<[s0, 8]>, kinds = [],
      maps = [affine_map<(d0, d1) -> (d0, d1)>]} : (!x) -> ()
  return
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @plain_input(%x: tensor<?x8xf32>) -> !x {
  // expected-error @below {{input 0 has type 'tensor<?x8xf32>', which carries no symbolic shape}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32>)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @input_map(%x: !x) -> !x {
  // expected-error @below {{input 0: the map has 3 dimensions, expected 2}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1, d2) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : !x
}

// -----

// Loops: bodies.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @argument_count(%x: !x) -> !x {
  // expected-error @below {{has 1 inputs but its body takes 2 arguments}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32, %w: f32):
    shapejit.yield %v : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @argument_type(%x: !x) -> !x {
  // expected-error @below {{body argument 0 is 'f64' but input 0 holds 'f32'}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f64):
    %w = arith.truncf %v : f64 to f32
    shapejit.yield %w : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @terminator(%x: !x) -> !x {
  // expected-error @below {{body must end with shapejit.yield}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    func.return %v : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @no_terminator(%x: !x) -> !x {
  // expected-error @below {{expects a non-empty block}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @yield_count(%x: !x) -> !x {
  // expected-error @below {{body yields 2 values for 1 results}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v, %v : f32, f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @yield_type(%x: !x) -> !x {
  // expected-error @below {{body yields 'f64' for result 0 of element type 'f32'}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    %w = arith.extf %v : f32 to f64
    shapejit.yield %w : f64
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @index_dim(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    // expected-error @below {{names dimension 2 of a loop with 2 dimensions}}
    %i = shapejit.index 2
    shapejit.yield %v : f32
  }
  return %0 : !x
}

// -----

func.func @index_outside() -> index {
  // expected-error @below {{expects parent op 'shapejit.loop'}}
  %i = shapejit.index 0
  return %i : index
}
