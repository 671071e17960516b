#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

class Engine;

/// How tensors of files are matched to a model's.
struct SafetensorsOptions {
  /// Returns the model's name for the tensor `name` of the files ("wte.weight" for
  /// "transformer.wte.weight"), or "" to leave the tensor out. Unset: names are the same.
  std::function<std::string(const std::string& name)> rename = {};
  /// If true, parameters and buffers that no file has stay as they are; if false, they are an
  /// error.
  bool allow_missing = false;
  /// If true, tensors of the files that the model does not have are left out; if false, they are an
  /// error.
  bool allow_unknown = false;
};

/// Names that the files and the model do not have in common.
struct LoadedSafetensors {
  std::vector<std::string> missing;  ///< names in the model that no file has
  /// Names in the files that the model does not have; without tensors that rename() leaves out.
  std::vector<std::string> unknown;
};

/// Loads the parameters and buffers of `model` from safetensors files, such as pretrained ones from
/// another framework. `paths`: the files, or one index ("model.safetensors.index.json") of files
/// beside it; links are followed. Values of another dtype are converted to the model's; a shared
/// parameter is found under any of its names; if the files have several of these names, it gets the
/// values under the name registered first. Reads one tensor at a time. Local; call it before
/// parallelize(), which gives all ranks rank 0's values.
///
/// Throws c10::Error, with nothing changed, if a file cannot be read or is malformed, if a name
/// occurs twice, or if shapes differ or tensors are missing or unknown; the text lists all such
/// tensors.
LoadedSafetensors load_safetensors(torch::nn::Module& model, const std::vector<std::string>& paths,
                                   const SafetensorsOptions& options = {});

/// The same for the model of `engine`. Collective, blocking. Call it between steps, with the same
/// arguments on all ranks; all ranks must see the files. Each rank reads its own part of the
/// parameters and masters directly into their memory; masters get the files' values, not the
/// rounded parameters. Takes 1 MiB of temporary memory if dtypes differ, and twice a tensor's
/// memory if the model keeps that tensor in another order of memory than the file. Buffers and
/// ignored parameters are read whole, before anything is changed. The optimizer's state and the
/// number of updates stay; gradients of this step are dropped. For the errors of the function above
/// it throws c10::Error on every rank, with nothing changed. It also does so if the model has no
/// parameter of the engine, or if ranks differ in files or names (lengths and samples of the files
/// are compared). If a file is truncated after these checks, the engine fails.
LoadedSafetensors load_safetensors(torch::nn::Module& model, Engine& engine,
                                   const std::vector<std::string>& paths,
                                   const SafetensorsOptions& options = {});

}  // namespace tessera
