// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Devices, modules, kernels and launches. Usage: cuda_launch DRIVER, a fake one

#include "CudaKernels.h"

#include <climits>

namespace {

void testOpening(const char *path) {
  int32_t count = 0;
  CHECK(shapejitRtCudaDeviceCount(&count) == ShapejitRtCudaNoDriver && errorHas("not opened"));
  CHECK(shapejitRtCudaOpen("/nowhere/libcuda.so") == ShapejitRtCudaNoDriver);
  CHECK(errorHas("/nowhere/libcuda.so"));
  CHECK(shapejitRtCudaOpen("libc.so.6") == ShapejitRtCudaNoDriver);
  CHECK(errorHas("no CUDA driver, or one older than CUDA 12.0"));
  fakeDriverVersion(11080);
  CHECK(shapejitRtCudaOpen(path) == ShapejitRtCudaNoDriver);
  CHECK(errorHas("no cuTensorMapEncodeTiled of CUDA 12.0") && errorHas("update it"));
  fakeDriverVersion(13000);
  fakeFail("cuInit", 100, 0);
  CHECK(shapejitRtCudaOpen(path) == ShapejitRtCudaNoDriver && errorHas("cuInit failed"));
  CHECK(shapejitRtCudaOpen(path) == ShapejitRtCudaOk);
  CHECK(shapejitRtCudaOpen(path) == ShapejitRtCudaOk);
  CHECK(shapejitRtCudaOpen("other") == ShapejitRtCudaNoDriver && errorHas("cannot be exchanged"));
}

void testDevices() {
  int32_t value = 0;
  CHECK(shapejitRtCudaDriverVersion(&value) == ShapejitRtCudaOk && value == 13000);
  CHECK(shapejitRtCudaDeviceCount(&value) == ShapejitRtCudaOk && value == 2);
  ShapejitRtCudaDeviceInfo info;
  CHECK(shapejitRtCudaDeviceInfo(1, &info) == ShapejitRtCudaOk);
  CHECK(std::strcmp(info.name, "Fake 1") == 0 && info.major == 9 && info.multiprocessors == 132);
  CHECK(info.memoryBytes == INT64_C(80) << 30 && info.sharedBytesPerBlock == 227 << 10);
  CHECK(fakeCalls("cuDevicePrimaryCtxRetain") == 0);
  for (int32_t bad : {-1, 2}) {
    CHECK(shapejitRtCudaDeviceInfo(bad, &info) == ShapejitRtCudaNoDriver);
    CHECK(errorHas("there is no CUDA device " + std::to_string(bad)));
  }
}

void testModules() {
  ShapejitRtCudaModule *module;
  CHECK(shapejitRtCudaModuleLoad(7, Gemm::kImage, &module) == ShapejitRtCudaNoDriver);
  CHECK(shapejitRtCudaModuleLoad(0, "junk", &module) == ShapejitRtCudaDriverFailed);
  CHECK(errorHas("another compute capability") && errorHas("line 1: not a fake"));
  int before = fakeModules();
  {
    LoadedModule loaded;
    CHECK(fakeModules() == before + 1 && shapejitRtCudaModules() == before + 1);
    MadeKernel kernel(loaded, Gemm("gemm"));
    shapejitRtCudaModuleRelease(loaded.handle);
    loaded.handle = nullptr;
    CHECK(fakeModules() == before + 1); // the kernel refers to it
    CHECK(kernel.launch(1, 8, 64) == ShapejitRtCudaOk);
  }
  CHECK(fakeModules() == before && shapejitRtCudaModules() == before);
}

void testParameters(const MadeKernel &gemm) {
  CHECK(gemm.launch(300, 512, 64) == ShapejitRtCudaOk);
  const FakeLaunch &launch = lastLaunch();
  CHECK(std::strcmp(launch.entry, "gemm") == 0 && launch.parameters == 6);
  CHECK(launch.grid[0] == 3 * 2 && launch.grid[1] == 1 && launch.grid[2] == 1);
  CHECK(launch.block[0] == 384 && launch.block[1] == 1 && launch.block[2] == 1);
  CHECK(launch.sharedBytes == 200 << 10 && launch.cluster == 0 && launch.programmatic == 0);
  auto a = parameterOf<FakeTensorMap>(launch, 0);
  CHECK(a.address == 0x10000 && a.rank == 2 && a.element == 9 && a.swizzle == 3);
  CHECK(a.promotion == 3 && a.dims[0] == 64 && a.dims[1] == 300 && a.pitches[0] == 128);
  CHECK(a.box[0] == 64 && a.box[1] == 128);
  auto c = parameterOf<FakeTensorMap>(launch, 2);
  CHECK(c.address == 0x30000 && c.dims[0] == 512 && c.dims[1] == 300 && c.pitches[0] == 1024);
  CHECK(parameterOf<int32_t>(launch, 3) == 300 && parameterOf<int32_t>(launch, 4) == 512);
  CHECK(parameterOf<int32_t>(launch, 5) == 64);
}

void testGrid(const MadeKernel &gemm) {
  CHECK(gemm.launch(100000, 4096, 64) == ShapejitRtCudaOk);
  CHECK(lastLaunch().grid[0] == 132); // persistent
  CHECK(gemm.launch(INT32_MAX, INT32_MAX - 7, 64) == ShapejitRtCudaOk);
  CHECK(lastLaunch().grid[0] == 132); // units overflow no integer
  int before = fakeLaunches();
  CHECK(gemm.launch(0, 512, 64) == ShapejitRtCudaOk);
  CHECK(gemm.launch(300, 0, 64) == ShapejitRtCudaOk);
  CHECK(fakeLaunches() == before);
  CHECK(gemm.launch(-1, 512, 64) == ShapejitRtCudaBadCall);
  CHECK(errorHas("s0 = -1 is negative (kernel gemm; s0 = -1, n = 512, k = 64"));
}

/// A product over nothing has a result; its operands get maps of one zero each.
void testEmptyOperands(const MadeKernel &gemm) {
  int64_t values[] = {300, 512, 0, 0, 512, 512};
  void *operands[] = {nullptr, nullptr, MadeKernel::at(0x30000)};
  CHECK(shapejitRtCudaLaunch(gemm.handle, operands, values, nullptr, nullptr) == ShapejitRtCudaOk);
  const FakeLaunch &launch = lastLaunch();
  for (int operand : {0, 1}) {
    auto map = parameterOf<FakeTensorMap>(launch, operand);
    CHECK(map.rank == 2 && map.dims[0] == 1 && map.dims[1] == 1 && map.pitches[0] == 16);
    CHECK(*reinterpret_cast<const uint64_t *>(map.address) == 0);
  }
  CHECK(parameterOf<FakeTensorMap>(launch, 2).dims[1] == 300);
  CHECK(parameterOf<int32_t>(launch, 5) == 0);
}

void testBadCalls(LoadedModule &module, const MadeKernel &gemm) {
  int before = fakeLaunches();
  // A size that needs more than 4 bytes, and the same in 8.
  CHECK(gemm.launch(INT64_C(3000000000), 512, 64) == ShapejitRtCudaBadCall);
  CHECK(errorHas("s0 = 3000000000 does not fit its 4 bytes") && errorHas("kernel gemm"));
  CHECK(gemm.launch(300, 512, INT64_C(1) << 33) == ShapejitRtCudaBadCall);
  CHECK(errorHas("k = 8589934592, must be within 0..4294967296") && errorHas("(operand 0)"));
  CHECK(gemm.launch(300, 512, -64) == ShapejitRtCudaBadCall && errorHas("k = -64"));
  // Addresses and strides that are no multiples of 16 bytes.
  int64_t values[] = {300, 512, 64, 64, 512, 512};
  void *operands[] = {MadeKernel::at(0x10000), MadeKernel::at(0x20008), MadeKernel::at(0x30000)};
  CHECK(shapejitRtCudaLaunch(gemm.handle, operands, values, nullptr, nullptr) ==
        ShapejitRtCudaBadCall);
  CHECK(errorHas("address 0x20008 must be a multiple of 16 bytes") && errorHas("(operand 1)"));
  operands[1] = nullptr;
  CHECK(shapejitRtCudaLaunch(gemm.handle, operands, values, nullptr, nullptr) ==
        ShapejitRtCudaBadCall);
  operands[1] = MadeKernel::at(0x20000);
  for (int64_t stride : {INT64_C(513), INT64_C(1) << 39, INT64_C(-512), INT64_MIN, INT64_MAX}) {
    values[4] = stride;
    CHECK(shapejitRtCudaLaunch(gemm.handle, operands, values, nullptr, nullptr) ==
          ShapejitRtCudaBadCall);
    CHECK(errorHas("the stride of dim 1") && errorHas("ldb = " + std::to_string(stride)));
  }
  CHECK(fakeLaunches() == before);
  // The stride of a dim of size 1 is never used.
  values[0] = 1;
  values[3] = 77;
  values[4] = values[5] = 512;
  CHECK(shapejitRtCudaLaunch(gemm.handle, operands, values, nullptr, nullptr) == ShapejitRtCudaOk);
  CHECK(parameterOf<FakeTensorMap>(lastLaunch(), 0).pitches[0] % 16 == 0);

  Gemm wide("gemm");
  wide.interface.ctasPerSm = 0;
  wide.tiles = {{0, 1}, {1, 1}};
  MadeKernel all(module, wide);
  CHECK(all.launch(INT32_MAX, 2, 64) == ShapejitRtCudaBadCall);
  CHECK(errorHas("more than 2147483647 clusters"));
  CHECK(all.launch(INT64_C(1) << 40, INT64_C(1) << 40, 64) == ShapejitRtCudaBadCall);
  CHECK(all.launch(1000, 100, 64) == ShapejitRtCudaBadCall); // n * 2 is no multiple of 16
  CHECK(all.launch(1000, 104, 64) == ShapejitRtCudaOk && lastLaunch().grid[0] == 104000);
}

void testAttributes(LoadedModule &module) {
  Gemm paired("gemm");
  paired.interface.cluster = 2;
  paired.interface.programmatic = 1;
  MadeKernel two(module, paired);
  CHECK(two.launch(100000, 4096, 64) == ShapejitRtCudaOk);
  CHECK(lastLaunch().cluster == 2 && lastLaunch().programmatic == 1);
  CHECK(lastLaunch().grid[0] == 132);
  CHECK(two.launch(128, 256, 64) == ShapejitRtCudaOk && lastLaunch().grid[0] == 2);
  paired.interface.cluster = 4; // 33 would fit by number, 32 by place
  MadeKernel four(module, paired);
  CHECK(four.launch(100000, 4096, 64) == ShapejitRtCudaOk && lastLaunch().grid[0] == 128);
  paired.interface.cluster = 16; // needs to be allowed
  MadeKernel sixteen(module, paired);
  CHECK(sixteen.launch(128, 256, 64) == ShapejitRtCudaOk && lastLaunch().grid[0] == 16);
  ShapejitRtCudaKernelInfo info;
  shapejitRtCudaKernelInfo(sixteen.handle, &info);
  CHECK(info.residentCtas == 128 && info.registers == 168 && info.sharedBytes == 1024);
}

/// What may be wrong with a description, and the text for it.
void testBadInterfaces(LoadedModule &module) {
  auto rejects = [&module](const char *text, auto change) {
    Gemm gemm("gemm");
    change(gemm);
    ShapejitRtCudaKernel *kernel;
    return gemm.tryMake(module.handle, &kernel) == ShapejitRtCudaBadInterface &&
           errorHas(gemm.interface.entry) && errorHas(text);
  };
  CHECK(rejects("no such function", [](Gemm &g) { g.interface.entry = "other"; }));
  CHECK(rejects("threads is 0", [](Gemm &g) { g.interface.threads = 0; }));
  CHECK(rejects("can have 384", [](Gemm &g) { g.interface.threads = 512; }));
  CHECK(rejects("within 0..232448", [](Gemm &g) { g.interface.sharedBytes = 228 << 10; }));
  CHECK(rejects("1024 of static", [](Gemm &g) { g.interface.sharedBytes = 227 << 10; }));
  CHECK(rejects("within 1..16", [](Gemm &g) { g.interface.cluster = 32; }));
  CHECK(rejects("has the length 0", [](Gemm &g) { g.tiles[1].tile = 0; }));
  CHECK(rejects("the grid refers to value 6", [](Gemm &g) { g.tiles[1].value = 6; }));
  CHECK(rejects("a size refers to value -1", [](Gemm &g) { g.parameters[3].value = -1; }));
  CHECK(rejects("a size has 4 or 8", [](Gemm &g) { g.parameters[3].bytes = 2; }));
  CHECK(rejects("takes 4 bytes", [](Gemm &g) { g.parameters[3].bytes = 8; }));
  CHECK(rejects("more than the 5", [](Gemm &g) { g.parameters.pop_back(); }));
  CHECK(rejects("has 6 parameters, its interface 7", [](Gemm &g) { g.addSize(0, 4); }));
  CHECK(rejects("no kind", [](Gemm &g) { g.parameters[3].kind = 9; }));
  CHECK(rejects("no operand", [](Gemm &g) { g.parameters[0].operand = -1; }));
  CHECK(rejects("value 6", [](Gemm &g) { g.parameters[0].dims[1] = 6; }));
  CHECK(rejects("value 9", [](Gemm &g) { g.parameters[0].strides[0] = 9; }));
  CHECK(rejects("1 to 5 dims", [](Gemm &g) { g.parameters[0].rank = 6; }));
  CHECK(rejects("1 to 256 elements", [](Gemm &g) { g.parameters[0].box[1] = 257; }));
  CHECK(rejects("multiple of 16 bytes", [](Gemm &g) { g.parameters[0].box[0] = 12; }));
  CHECK(rejects("fit the swizzle", [](Gemm &g) { g.parameters[0].box[0] = 128; }));
  CHECK(rejects("the swizzle", [](Gemm &g) { g.parameters[0].swizzle = 16; }));
  CHECK(rejects("the promotion", [](Gemm &g) { g.parameters[0].promotion = 32; }));
  CHECK(rejects("element type", [](Gemm &g) { g.parameters[0].element = 10; }));
  CHECK(rejects("zero bytes", [](Gemm &g) { g.addWorkspace(64, 24); }));
  CHECK(rejects("zero bytes", [](Gemm &g) { g.addWorkspace(64, 128 << 10); }));
  CHECK(rejects("for a CTA", [](Gemm &g) { g.addWorkspace(-1, 0); }));
  CHECK(rejects("CTAs at the least", [](Gemm &g) { g.addWorkspace(64, 0, -1); }));
  CHECK(rejects("one workspace", [](Gemm &g) {
    g.addWorkspace(64, 0);
    g.addWorkspace(64, 0);
  }));
  CHECK(rejects("use the block form", [](Gemm &g) {
    for (int i = 0; i < 32; ++i)
      g.addMap(0, {2, 0}, 3, {64, 128});
  }));
  CHECK(rejects("must be persistent", [](Gemm &g) {
    g.toBlock();
    g.interface.ctasPerSm = 0;
  }));
  CHECK(rejects("cannot lie at offset 8", [](Gemm &g) {
    g.toBlock();
    g.parameters[1].offset = 8;
  }));
  CHECK(rejects("cannot lie at offset 512", [](Gemm &g) {
    g.toBlock();
    g.parameters[5].offset = 512;
  }));
  CHECK(rejects("overlaps parameter 0", [](Gemm &g) {
    g.toBlock();
    g.parameters[1].offset = 64;
  }));
  CHECK(rejects("takes 128 bytes in its function, and 8", [](Gemm &g) { g.toBlock(); }));
}

void testBlock(LoadedModule &module) {
  Gemm gemm("gemm_block");
  gemm.addWorkspace(1024, 256);
  gemm.toBlock();
  MadeKernel kernel(module, gemm);
  ShapejitRtCudaKernelInfo info;
  shapejitRtCudaKernelInfo(kernel.handle, &info);
  CHECK(info.workspaceBytes == 132 * 1024 + 256);
  alignas(64) unsigned char entry[512] = {};
  int64_t values[] = {300, 512, 64, 64, 512, 512};
  void *operands[] = {MadeKernel::at(0x10000), MadeKernel::at(0x20000), MadeKernel::at(0x30000)};
  void *scratch = MadeKernel::at(0x40000);
  CHECK(shapejitRtCudaFillBlock(kernel.handle, operands, values, nullptr, entry) ==
        ShapejitRtCudaBadCall);
  CHECK(errorHas("a workspace of 135424 bytes (kernel gemm_block"));
  CHECK(shapejitRtCudaFillBlock(kernel.handle, operands, values, scratch, entry + 8) ==
        ShapejitRtCudaBadCall);
  CHECK(shapejitRtCudaFillBlock(kernel.handle, operands, values, scratch, entry) ==
        ShapejitRtCudaOk);
  FakeTensorMap b;
  std::memcpy(&b, entry + 128, sizeof(b));
  CHECK(b.address == 0x20000 && b.dims[0] == 512 && b.dims[1] == 64);
  int32_t sizes[6];
  std::memcpy(sizes, entry + 384, sizeof(sizes));
  CHECK(sizes[0] == 300 && sizes[2] == 512 && sizes[4] == 64);
  void *workspace;
  std::memcpy(&workspace, entry + 408, sizeof(workspace));
  CHECK(workspace == scratch);
  CHECK(shapejitRtCudaLaunchBlock(kernel.handle, MadeKernel::at(0x50000), nullptr) ==
        ShapejitRtCudaOk);
  CHECK(lastLaunch().grid[0] == 132 && parameterOf<uint64_t>(lastLaunch(), 0) == 0x50000);
  // The two forms are not mixed up.
  CHECK(kernel.launch(1, 8, 8) == ShapejitRtCudaBadCall && errorHas("from a block"));
  MadeKernel byValue(module, Gemm("gemm"));
  CHECK(shapejitRtCudaLaunchBlock(byValue.handle, entry, nullptr) == ShapejitRtCudaBadCall);
  CHECK(shapejitRtCudaFillBlock(byValue.handle, operands, values, scratch, entry) ==
        ShapejitRtCudaBadCall);
  CHECK(errorHas("by value"));
}

/// Whatever context is current before a call is so afterwards.
void testContexts() {
  LoadedModule first(0), second(1);
  MadeKernel zero(first, Gemm("gemm")), one(second, Gemm("gemm"));
  for (int context : {-1, 0, 1}) {
    fakeSetContext(context);
    CHECK(zero.launch(1, 8, 8) == ShapejitRtCudaOk);
    CHECK(one.launch(1, 8, 8) == ShapejitRtCudaOk);
    CHECK(one.launch(-1, 8, 8) == ShapejitRtCudaBadCall);
    LoadedModule third(1);
    CHECK(fakeContext() == context);
  }
  void *stream = fakeStreamCreate(1);
  CHECK(zero.launch(1, 8, 8, stream) == ShapejitRtCudaDriverFailed);
  CHECK(errorHas("must belong to the primary context of the kernel's device"));
  fakeStreamDestroy(stream);
  fakeSetContext(-1);
}

void testDriverFailures(LoadedModule &module, const MadeKernel &gemm) {
  fakeFail("cuLaunchKernelEx", 700, 0);
  CHECK(gemm.launch(300, 512, 64) == ShapejitRtCudaDriverFailed);
  CHECK(errorHas("cuLaunchKernelEx failed with CUDA_ERROR_ILLEGAL_ADDRESS (700): made up"));
  CHECK(errorHas("Some kernel of this process failed before"));
  CHECK(errorHas("(kernel gemm, 6 CTAs in clusters of 1, 384 threads and 204800 bytes of shared "
                 "memory each; s0 = 300, n = 512, k = 64, lda = 64, ldb = 512, ldc = 512)"));
  for (const char *function :
       {"cuCtxPushCurrent", "cuStreamGetCaptureInfo", "cuTensorMapEncodeTiled"}) {
    fakeFail(function, 999, 0);
    CHECK(gemm.launch(300, 512, 64) == ShapejitRtCudaDriverFailed && errorHas(function));
    CHECK(errorHas("kernel gemm"));
  }
  CHECK(gemm.launch(300, 512, 64) == ShapejitRtCudaOk);
  int modules = fakeModules();
  for (const char *function :
       {"cuModuleGetFunction", "cuFuncLoad", "cuFuncSetAttribute", "cuFuncGetAttribute",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor"}) {
    fakeFail(function, 999, 0);
    ShapejitRtCudaKernel *kernel;
    CHECK(Gemm("gemm").tryMake(module.handle, &kernel) == ShapejitRtCudaDriverFailed);
    CHECK(errorHas(function) && errorHas("(kernel gemm)"));
  }
  CHECK(fakeModules() == modules);
}

/// A device that could not be opened is tried again.
void testOpeningOfDevices() {
  ShapejitRtCudaModule *module;
  for (const char *function : {"cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuStreamCreate",
                               "cuMemAlloc", "cuMemsetD8Async", "cuStreamSynchronize"}) {
    fakeFail(function, 2, 0);
    CHECK(shapejitRtCudaModuleLoad(1, Gemm::kImage, &module) == ShapejitRtCudaDriverFailed);
    CHECK(errorHas(function));
  }
  LoadedModule loaded(1);
  CHECK(fakeMemory() == 256);
}

} // namespace

int main(int argc, char **argv) {
  CHECK(argc == 2);
  testOpening(argv[1]);
  testDevices();
  testOpeningOfDevices();
  testModules();
  {
    LoadedModule module;
    MadeKernel gemm(module, Gemm("gemm"));
    testParameters(gemm);
    testGrid(gemm);
    testEmptyOperands(gemm);
    testBadCalls(module, gemm);
    testAttributes(module);
    testBadInterfaces(module);
    testBlock(module);
    testContexts();
    testDriverFailures(module, gemm);
  }
  CHECK(fakeModules() == 0);
  checkViolations();
  std::puts("ok");
}
