# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolution kernels for NVIDIA GPUs.

lowering          a kernel and a schedule to a gpu module
problem           what a kernel computes
product           the same as a product of matrices that TMA reads, for the emitters of products
gathered          the same where threads read the matrices
depthwise         groups of one channel, without products; what a thread has and what that needs is
                  in depthwise_schedule, loads and stores in depthwise_memory
depthwise_choice  which of its variants serves which sizes, by depthwise_model
"""
