// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels on NVIDIA GPUs: the C interface of libshapejit_rt.so.
//
// The CUDA driver is opened at run time; nothing of CUDA is needed to build or to load the library.
// A kernel is made once from its machine code and a description of its call, which is validated
// then. A launch follows the description: it computes the grid, checks ranges, encodes tensor maps
// and hands everything to the driver.
//
// Functions that return int32_t return a ShapejitRtCudaStatus. After a failure
// shapejitRtCudaError() has its text. All of them may be called from any thread at any time, with
// any context current; the current context is as before afterwards. The primary context of a device
// is used, the one that torch and the CUDA runtime use; it is kept until the process ends.
//
// Launches may be captured into a CUDA graph. The graph then keeps the machine code, and the
// scratch memory that the capture took, for as long as it or an executable made from it exists.

#ifndef SHAPEJIT_RT_CUDA_H
#define SHAPEJIT_RT_CUDA_H

#include "shapejit_rt/api.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ShapejitRtCudaStatus {
  ShapejitRtCudaOk = 0,
  /// There is no usable driver: no library, one that is too old, or no device.
  ShapejitRtCudaNoDriver = 1,
  /// A call of the driver failed.
  ShapejitRtCudaDriverFailed = 2,
  /// The description of a kernel is wrong, or does not fit its machine code or the device.
  ShapejitRtCudaBadInterface = 3,
  /// An operand or a size of a call breaks a rule.
  ShapejitRtCudaBadCall = 4,
};

/// The text of the calling thread's last failure: one sentence or two that name the kernel, the
/// value and the rule. Empty if there was none. It is valid until the thread's next call.
SHAPEJIT_RT_API const char *shapejitRtCudaError(void);

// The driver and its devices.

/// Opens the driver, if it is not open. `path` is the name or path of libcuda.
SHAPEJIT_RT_API int32_t shapejitRtCudaOpen(const char *path);

/// The highest CUDA version that the driver supports, as 1000 * major + 10 * minor.
SHAPEJIT_RT_API int32_t shapejitRtCudaDriverVersion(int32_t *version);

SHAPEJIT_RT_API int32_t shapejitRtCudaDeviceCount(int32_t *count);

struct ShapejitRtCudaDeviceInfo {
  char name[256];
  int32_t major; ///< of the compute capability
  int32_t minor;
  int32_t multiprocessors;
  int32_t sharedBytesPerBlock; ///< the most that a kernel may ask for
  int32_t sharedBytesPerMultiprocessor;
  int32_t cacheBytes; ///< of the second level
  int64_t memoryBytes;
};

/// What a device is. No context is made for it.
SHAPEJIT_RT_API int32_t shapejitRtCudaDeviceInfo(int32_t device,
                                                 struct ShapejitRtCudaDeviceInfo *info);

// Machine code.

struct ShapejitRtCudaModule;

/// Loads a cubin, or PTX text that ends with a zero, into the memory of a device. The caller has
/// one reference to the module.
SHAPEJIT_RT_API int32_t shapejitRtCudaModuleLoad(int32_t device, const void *image,
                                                 struct ShapejitRtCudaModule **module);

/// Gives the caller's reference up. The module is unloaded once no kernel and no graph refers to
/// it; the driver waits for launches that run.
SHAPEJIT_RT_API void shapejitRtCudaModuleRelease(struct ShapejitRtCudaModule *module);

/// Modules that are loaded, on all devices.
SHAPEJIT_RT_API int32_t shapejitRtCudaModules(void);

// Kernels.

enum ShapejitRtCudaParameterKind {
  ShapejitRtCudaTensorMap = 0,
  ShapejitRtCudaPointer = 1,
  ShapejitRtCudaSize = 2,
  ShapejitRtCudaWorkspace = 3,
  ShapejitRtCudaIm2colMap = 4,
};

enum ShapejitRtCudaElement {
  ShapejitRtCudaU8 = 0,
  ShapejitRtCudaU16 = 1,
  ShapejitRtCudaU32 = 2,
  ShapejitRtCudaI32 = 3,
  ShapejitRtCudaU64 = 4,
  ShapejitRtCudaI64 = 5,
  ShapejitRtCudaF16 = 6,
  ShapejitRtCudaF32 = 7,
  ShapejitRtCudaF64 = 8,
  ShapejitRtCudaBF16 = 9,
  ShapejitRtCudaTF32 = 11,
};

/// A parameter of a kernel. Which fields count depends on its kind.
struct ShapejitRtCudaParameter {
  int32_t kind;
  int32_t operand; ///< maps, pointer: its number among a call's operands
  int64_t offset;  ///< in block form: where it lies in the entry, in bytes
  // Size.
  int32_t value; ///< its number among a call's values
  int32_t bytes; ///< 4 or 8
  // Tensor map: from the fastest moving dim on, as the driver takes them.
  int32_t element;
  int32_t rank;
  int32_t dims[5];    ///< numbers of values
  int32_t strides[4]; ///< numbers of values, in elements; of all dims but the first
  int32_t box[5];
  int32_t swizzle;   ///< bytes: 0, 32, 64, 128
  int32_t promotion; ///< bytes: 0, 64, 128, 256
  // Workspace: first what must be zero, then so many bytes for every CTA of the grid, and for so
  // many CTAs even if it has fewer.
  int64_t zeroed;
  int64_t bytesPerCta;
  int64_t leastCtas;
  // Im2col map: as a tensor map, whose box is channels and pixels, of an image whose dims are
  // channels, one to three spatial dims, images. Of every spatial dim the first place of a window,
  // how far the last one is from the last pixel, and the distance of places.
  int32_t lower[3];
  int32_t upper[3];
  int32_t steps[3];
};

/// One factor of the number of units of a grid: ceil(value / tile).
struct ShapejitRtCudaTile {
  int32_t value; ///< its number among a call's values
  int32_t tile;
};

/// How a kernel is called. Everything is copied when a kernel is made.
struct ShapejitRtCudaInterface {
  const char *entry; ///< name of the function
  int32_t threads;   ///< of a CTA
  int32_t sharedBytes;
  int32_t cluster;           ///< CTAs, in x
  int32_t ctasPerSm;         ///< of a persistent grid; 0: a grid of all units
  int32_t block;             ///< the function takes the address of an entry of a parameter block
  int32_t programmatic;      ///< programmatic dependent launch
  int64_t blockBytes;        ///< size of the entry
  const char *const *values; ///< what the values are, for texts
  int32_t valueCount;
  int32_t tileCount;
  const struct ShapejitRtCudaTile *tiles;
  int32_t parameterCount;
  const struct ShapejitRtCudaParameter *parameters;
};

struct ShapejitRtCudaKernel;

/// Makes a kernel of a module. It refers to the module until it is released.
SHAPEJIT_RT_API int32_t shapejitRtCudaKernelCreate(struct ShapejitRtCudaModule *module,
                                                   const struct ShapejitRtCudaInterface *interface,
                                                   struct ShapejitRtCudaKernel **kernel);

/// Ends a kernel that no thread launches any more.
SHAPEJIT_RT_API void shapejitRtCudaKernelRelease(struct ShapejitRtCudaKernel *kernel);

struct ShapejitRtCudaKernelInfo {
  int32_t registers;      ///< of a thread
  int32_t localBytes;     ///< of a thread: spilled registers and arrays
  int32_t sharedBytes;    ///< static shared memory of a CTA
  int32_t residentCtas;   ///< CTAs of a persistent grid; 0 if it is not persistent
  int64_t workspaceBytes; ///< for those CTAs; 0 if it takes none or is not persistent
};

SHAPEJIT_RT_API void shapejitRtCudaKernelInfo(const struct ShapejitRtCudaKernel *kernel,
                                              struct ShapejitRtCudaKernelInfo *info);

/// Launches a kernel into a stream.
///
/// `operands` are addresses in device memory, `values` the integers that the interface names.
/// `workspace` is scratch memory for this launch alone, zero where the kernel asks for it; null
/// takes it from the stream's own. A grid without units launches nothing.
///
/// Nothing here waits for the device or allocates, with one exception: the first launches in a
/// stream of kernels that take a workspace, see shapejitRtCudaReserve().
SHAPEJIT_RT_API int32_t shapejitRtCudaLaunch(const struct ShapejitRtCudaKernel *kernel,
                                             void *const *operands, const int64_t *values,
                                             void *workspace, void *stream);

// Block form: a kernel that reads its parameters from device memory.

/// Writes the parameters of a kernel in block form into host memory, as the entry that lies in
/// device memory when the kernel runs. `workspace` must be given if the kernel takes one:
/// ShapejitRtCudaKernelInfo has its size.
SHAPEJIT_RT_API int32_t shapejitRtCudaFillBlock(const struct ShapejitRtCudaKernel *kernel,
                                                void *const *operands, const int64_t *values,
                                                void *workspace, void *entry);

/// Launches a kernel in block form with the entry at that address in device memory. Its grid does
/// not depend on the sizes.
SHAPEJIT_RT_API int32_t shapejitRtCudaLaunchBlock(const struct ShapejitRtCudaKernel *kernel,
                                                  const void *entry, void *stream);

// Scratch memory. Each stream of a device has one buffer, which its launches share in turn; each
// stream of a capture has one that belongs to the graph.

/// Allocates the workspace that launches of a persistent kernel in a stream need, so that they
/// will not have to.
SHAPEJIT_RT_API int32_t shapejitRtCudaReserve(const struct ShapejitRtCudaKernel *kernel,
                                              void *stream);

struct ShapejitRtCudaWorkspaceUse {
  int64_t bytes;      ///< of all buffers
  int64_t graphBytes; ///< of those that belong to graphs
  int32_t buffers;
};

SHAPEJIT_RT_API int32_t shapejitRtCudaWorkspaceUse(int32_t device,
                                                   struct ShapejitRtCudaWorkspaceUse *use);

/// Sets how many bytes the buffers of streams may take on each device, 1 GiB at first. Beyond it
/// those that were not used for longest are freed.
SHAPEJIT_RT_API void shapejitRtCudaWorkspaceLimit(int64_t bytes);

/// Frees the buffers of all streams of a device. The driver waits for launches that use them.
SHAPEJIT_RT_API int32_t shapejitRtCudaWorkspaceRelease(int32_t device);

// Memory of the caller's, from the driver itself.

struct ShapejitRtCudaMemory;

/// Allocates device memory, at a multiple of 256 bytes. May be called during captures; what was
/// given back before is freed first.
SHAPEJIT_RT_API int32_t shapejitRtCudaMemoryAllocate(int32_t device, int64_t bytes,
                                                     struct ShapejitRtCudaMemory **memory,
                                                     void **address);

/// Gives memory back. The driver waits for the work that is queued by then.
SHAPEJIT_RT_API void shapejitRtCudaMemoryRelease(struct ShapejitRtCudaMemory *memory);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // SHAPEJIT_RT_CUDA_H
