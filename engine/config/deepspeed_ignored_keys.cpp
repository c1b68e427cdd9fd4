// The rest of DeepSpeed's configuration: keys without effect here, and keys that are refused
// because they would change what is trained or where it is kept.
#include <initializer_list>

#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

/// Adds settings of a block that are all without effect for the same reason.
void add_block(std::vector<Key>& keys,
               const std::string& block,
               std::initializer_list<const char*> names,
               const std::string& note) {
  for (const char* name : names) {
    keys.push_back(no_effect(block + "." + name, KeyKind::kAny, note));
  }
}

void add_communication(std::vector<Key>& keys) {
  keys.push_back(
      refused("gradient_allreduce_op", {"\"mean\""},
              "only \"mean\" is supported: with \"sum\" the meaning of the learning rate "
              "would depend on the number of ranks"));
  keys.push_back(no_effect("managed_gradient_accumulation", KeyKind::kBool,
                           "dstrain always drives the accumulation itself"));
  keys.push_back(
      no_effect("seq_parallel_communication_data_type", KeyKind::kAny,
                "what ranks exchange of activations travels in the dtype that they compute in"));
  keys.push_back(no_effect("fp32_allreduce", KeyKind::kBool,
                           "its new name is communication_data_type, fp32 by default"));
  keys.push_back(no_effect("sparse_gradients", KeyKind::kBool,
                           "every gradient is dense, that of the embedding too"));
  for (const char* name : {"disable_allgather", "allgather_size"}) {
    keys.push_back(no_effect(name, KeyKind::kAny,
                             "a unit's parameters are always gathered by one all-gather"));
  }
}

void add_other(std::vector<Key>& keys) {
  keys.push_back(no_effect("dataloader_drop_last", KeyKind::kBool,
                           "every batch is whole: the data starts again where it ends"));
  keys.push_back(no_effect("vocabulary_size", KeyKind::kAny, "model.vocab_size decides it"));
  keys.push_back(no_effect("graph_harvesting", KeyKind::kBool, "it concerns CUDA graphs of torch"));
  keys.push_back(
      no_effect("use_data_before_expert_parallelism", KeyKind::kBool, "there are no experts"));
  add_block(keys, "checkpoint",
            {"tag_validation", "use_node_local_storage", "parallel_write", "writer",
             "checkpoint_serialization"},
            "checkpoints are dstrain's own: checked, and renamed into place when whole");
  keys.push_back(refused("checkpoint.load_universal", {"false"},
                         "a run starts from a DeepSpeed checkpoint once it is converted: dstrain "
                         "convert-checkpoint --from DEEPSPEED_FOLDER --to FOLDER --format dstrain, "
                         "then --set checkpoint.resume=FOLDER, and leave this key out"));
}

/// Adds keys that DeepSpeed leaves to the Python script that it runs in: the script reads them,
/// calls a function for them, or has a model that knows them.
void add_python(std::vector<Key>& keys) {
  const char* const kScript =
      "DeepSpeed does it where the Python script or its model takes part, which there is not here: "
      "the run trains without it";
  for (const char* block :
       {"compression_training", "progressive_layer_drop", "sparse_attention", "hybrid_engine",
        "eigenvalue", "weight_quantization", "quantize_training", "nebula"}) {
    keys.push_back(block_not_done(block, kScript));
  }
  // Of its metrics DeepSpeed samples by, and cuts no sequence: that is the script's function for a
  // batch, which for "seqlen_truncate" takes the first tokens, and for others something else.
  keys.push_back(block_not_done(
      "data_efficiency",
      "DeepSpeed does it where the Python script takes part, and there is none here: the run "
      "trains without; the schedule of a curriculum by length, \"seqlen_truncate\", has its place "
      "in curriculum_learning"));
  keys.push_back(no_effect("autotuning", KeyKind::kAny,
                           "nothing is tuned: estimate-memory says what fits, and a value that is "
                           "a list of candidates is its first"));
  keys.back().aliases = {"autotuning_config"};  // an older spelling
  keys.push_back(no_effect("monitor_config", KeyKind::kAny,
                           "DeepSpeed reads the monitors' blocks at the top level, and nothing in "
                           "this one"));
  keys.push_back(no_effect("compile", KeyKind::kAny, "there is no torch to compile for"));
  keys.push_back(no_effect("log", KeyKind::kAny, "it belongs to a Python script"));
  keys.push_back(no_effect("comms_config", KeyKind::kAny,
                           "the launcher and the layout decide how ranks talk"));
  keys.push_back(no_effect("cuda_visible_devices", KeyKind::kAny,
                           "the environment variable and --include choose GPUs"));
}

}  // namespace

std::vector<Key> deepspeed_ignored_keys() {
  std::vector<Key> keys;
  add_communication(keys);
  add_other(keys);
  add_python(keys);
  keys.push_back(silent("$schema"));  // where an editor finds what dstrain schema prints
  keys.push_back(silent("_notes"));   // config.resolved.json explains its defaults there
  return keys;
}

}  // namespace dstrain
