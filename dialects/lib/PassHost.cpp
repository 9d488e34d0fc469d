// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Passes written in Python, registered in MLIR's own registry with typed options, so
// that they run by name in textual pipelines, and a pass manager run that releases the
// interpreter lock and returns the diagnostics.

#include "shapejit/ShapeJit.h"

#include "mlir/CAPI/IR.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/NVGPU/IR/NVGPUDialect.h"
#include "mlir/Dialect/OpenMP/OpenMPDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"

#include <cstring>

using namespace mlir;

#define SHAPEJIT_API extern "C" __attribute__((visibility("default")))

namespace {

/// The types of options a Python pass may declare; the numbers are shared with
/// pass_host.py.
enum class OptionKind : int { Integer = 0, Boolean = 1, String = 2 };

struct OptionSpec {
  std::string name, description, initial;
  OptionKind kind;
};

/// Runs the pass with number `id`; the options come as parallel arrays of text.
/// Returns 0 on success, after which nothing was emitted, else an error was.
using RunCallback = int (*)(int64_t id, void *operation, const char **names, const char **values,
                            intptr_t count);

struct PassSpec {
  int64_t id;
  std::string argument, name, description;
  std::vector<std::string> dialects;
  std::vector<OptionSpec> options;
  RunCallback run;
  TypeID typeID;
};

using DialectInserter = void (*)(DialectRegistry &);

template <typename... Dialects> llvm::StringMap<DialectInserter> insertersOf() {
  llvm::StringMap<DialectInserter> map;
  (map.try_emplace(Dialects::getDialectNamespace(),
                   [](DialectRegistry &registry) { registry.insert<Dialects>(); }),
   ...);
  return map;
}

/// The dialects a Python pass may create ops of. Loading all of them for every pass
/// costs six times the load of the few a pass needs.
const llvm::StringMap<DialectInserter> &dialectInserters() {
  static const auto map =
      insertersOf<arith::ArithDialect, func::FuncDialect, gpu::GPUDialect, LLVM::LLVMDialect,
                  math::MathDialect, memref::MemRefDialect, NVVM::NVVMDialect, nvgpu::NVGPUDialect,
                  omp::OpenMPDialect, scf::SCFDialect, tensor::TensorDialect, vector::VectorDialect,
                  shapejit::ShapeJitDialect>();
  return map;
}

class PythonPass : public Pass {
public:
  explicit PythonPass(const PassSpec &spec)
      : Pass(spec.typeID, ModuleOp::getOperationName()), spec(spec) {
    for (const OptionSpec &option : spec.options)
      addOption(option);
  }
  StringRef getName() const override { return spec.name; }
  StringRef getArgument() const override { return spec.argument; }
  StringRef getDescription() const override { return spec.description; }
  void getDependentDialects(DialectRegistry &registry) const override {
    for (const std::string &name : spec.dialects)
      dialectInserters().lookup(name)(registry);
  }
  bool canScheduleOn(RegisteredOperationName name) const override {
    return name.getStringRef() == ModuleOp::getOperationName();
  }
  std::unique_ptr<Pass> clonePass() const override {
    auto clone = std::make_unique<PythonPass>(spec);
    clone->copyOptionValuesFrom(this);
    return clone;
  }
  void runOnOperation() override {
    std::vector<std::string> names, values;
    for (const auto &option : integers)
      names.push_back(option->getArgStr().str()), values.push_back(std::to_string(*option));
    for (const auto &option : booleans)
      names.push_back(option->getArgStr().str()), values.push_back(*option ? "1" : "0");
    for (const auto &option : strings)
      names.push_back(option->getArgStr().str()), values.push_back(*option);
    std::vector<const char *> namePointers, valuePointers;
    for (size_t i = 0; i < names.size(); ++i) {
      namePointers.push_back(names[i].c_str());
      valuePointers.push_back(values[i].c_str());
    }
    if (spec.run(spec.id, getOperation(), namePointers.data(), valuePointers.data(), names.size()))
      signalPassFailure();
  }

private:
  void addOption(const OptionSpec &option) {
    llvm::cl::desc description(option.description);
    switch (option.kind) {
    case OptionKind::Integer:
      integers.push_back(std::make_unique<Option<int64_t>>(
          *this, option.name, description, llvm::cl::init(std::stoll(option.initial))));
      return;
    case OptionKind::Boolean:
      booleans.push_back(std::make_unique<Option<bool>>(*this, option.name, description,
                                                        llvm::cl::init(option.initial == "1")));
      return;
    case OptionKind::String:
      strings.push_back(std::make_unique<Option<std::string>>(*this, option.name, description,
                                                              llvm::cl::init(option.initial)));
      return;
    }
  }

  const PassSpec &spec;
  std::vector<std::unique_ptr<Option<int64_t>>> integers;
  std::vector<std::unique_ptr<Option<bool>>> booleans;
  std::vector<std::unique_ptr<Option<std::string>>> strings;
};

std::vector<std::string> strings(const char *const *values, intptr_t count) {
  return {values, values + count};
}

} // namespace

/// Whether a Python pass may list `name` among its dialects.
SHAPEJIT_API int shapejitIsPassDialect(const char *name) {
  return dialectInserters().contains(name);
}

SHAPEJIT_API void shapejitRegisterPythonPass(int64_t id, const char *argument, const char *name,
                                             const char *description, const char *const *dialects,
                                             intptr_t numDialects, const char *const *optionNames,
                                             const char *const *optionDescriptions,
                                             const char *const *optionInitials,
                                             const int *optionKinds, intptr_t numOptions,
                                             RunCallback run) {
  static TypeIDAllocator typeIDs;
  // A registered pass is never unregistered, so its specification lives as long as the process.
  auto *spec = new PassSpec{
      id, argument, name, description, strings(dialects, numDialects), {}, run, typeIDs.allocate()};
  for (intptr_t i = 0; i < numOptions; ++i)
    spec->options.push_back({optionNames[i], optionDescriptions[i], optionInitials[i],
                             static_cast<OptionKind>(optionKinds[i])});
  registerPass([spec] { return std::make_unique<PythonPass>(*spec); });
}

/// Emits an error at an operation. Must be called with the interpreter lock held: the
/// bindings may have put a Python handler on the context.
SHAPEJIT_API void shapejitEmitError(void *operation, const char *message) {
  static_cast<Operation *>(operation)->emitError() << message;
}

/// Runs a pass manager; `*diagnostics` receives what was emitted, to be freed by the
/// caller. Called without the interpreter lock, which Python passes then take by turns:
/// with it held, a Python pass on another thread would wait forever. The handler is in
/// C++ because a Python one aborts when it is called without the lock.
SHAPEJIT_API int shapejitRunPassManager(void *passManager, void *operation, char **diagnostics) {
  auto *root = static_cast<Operation *>(operation);
  std::string text;
  llvm::raw_string_ostream stream(text);
  ScopedDiagnosticHandler handler(root->getContext(), [&](Diagnostic &diagnostic) {
    stream << diagnostic.getLocation() << ": " << diagnostic << "\n";
    for (Diagnostic &note : diagnostic.getNotes())
      stream << note.getLocation() << ": note: " << note << "\n";
    return success();
  });
  bool failed = mlir::failed(static_cast<PassManager *>(passManager)->run(root));
  *diagnostics = strdup(text.c_str());
  return failed;
}
