// RUN: not shapejit-opt %s --shapejit-choose-buckets=max-variants=0 2>&1 | FileCheck %s --check-prefix=VARIANTS
// VARIANTS: max-variants must be at least 1, got 0

// RUN: not shapejit-opt %s --shapejit-choose-buckets=max-regions=0 2>&1 | FileCheck %s --check-prefix=REGIONS
// REGIONS: max-regions must be at least 1, got 0

// RUN: not shapejit-opt %s --shapejit-choose-buckets=tolerance-percent=-1 2>&1 | FileCheck %s --check-prefix=TOLERANCE
// TOLERANCE: tolerance-percent must be at least 0, got -1

// RUN: not shapejit-opt %s --shapejit-choose-buckets=schedules=fastest 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// SCHEDULE: 'fastest' names no gemm schedule

// RUN: not shapejit-opt %s --shapejit-choose-buckets=histogram=rows:1=5 2>&1 | FileCheck %s --check-prefix=NAME
// NAME: the histogram is of "rows", but the symbols are: tokens

// RUN: not shapejit-opt %s --shapejit-choose-buckets=histogram=tokens:65=5 2>&1 | FileCheck %s --check-prefix=RANGE
// RANGE: the histogram of "tokens" has the size 65, which is out of its range 1..64

// RUN: not shapejit-opt %s --shapejit-choose-buckets=histogram=tokens:5 2>&1 | FileCheck %s --check-prefix=FORM
// FORM: "tokens:5" is no histogram of a symbol; one is written name:size=weight

// No candidate that uses tensor maps: a kernel that could use them has none.
// RUN: not shapejit-opt %s --shapejit-choose-buckets=schedules=unaligned_64x64x32_s3_w1 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error: this kernel has no schedule that fits a multiprocessor of h200; tried: none that uses tensor maps

#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
!w = tensor<64x64xbf16, #shapejit.shape<[64, 64]>>
shapejit.symbol @tokens {id = 0, min = 1, max = 64}
shapejit.kernel @linear symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 64, 64] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}
