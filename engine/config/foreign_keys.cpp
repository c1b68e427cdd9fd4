#include "engine/config/foreign_keys.h"

#include <algorithm>
#include <set>

namespace dstrain {
namespace {

/// GPT-NeoX spells its arguments with hyphens or underscores.
std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// GPT-NeoX's arguments that are found in configs.
const std::set<std::string>& neox_arguments() {
  static const std::set<std::string> names = {
      // the model
      "num_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_kv_heads",
      "seq_length", "max_position_embeddings", "norm", "layernorm_epsilon", "rms_norm_epsilon",
      "pos_emb", "rotary_pct", "rotary_emb_base", "rpe_num_buckets", "rpe_max_distance",
      "no_weight_tying", "attention_config", "sparsity_config", "activation", "mlp_type",
      "gpt_j_residual", "gpt_j_tied", "use_bias_in_norms", "use_bias_in_attn_linear",
      "soft_prompt_tuning", "init_method", "init_method_std", "output_layer_init_method",
      "output_layer_parallelism", "apply_query_key_layer_scaling", "attention_softmax_in_fp32",
      "scalenorm_epsilon", "make_vocab_size_divisible_by", "padded_vocab_size", "onnx_safe",
      "attention_dropout", "hidden_dropout", "precision", "num_unique_layers",
      // how it is computed
      "pipe_parallel_size", "model_parallel_size", "pipe_partition_method", "is_pipe_parallel",
      "scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion",
      "bias_gelu_fusion", "bias_dropout_fusion", "rope_fusion", "layernorm_fusion",
      "rmsnorm_fusion", "checkpoint_activations", "checkpoint_num_layers", "checkpoint_factor",
      "checkpoint_in_cpu", "checkpoint_scale", "partition_activations", "synchronize_each_layer",
      "distributed_backend", "local_rank", "rank", "world_size", "gas", "clip_grad",
      "dynamic_loss_scale", "loss_scale", "loss_scale_window", "min_scale", "hysteresis",
      // the run
      "train_iters", "eval_interval", "eval_iters", "log_interval", "save_interval",
      "keep_last_n_checkpoints", "lr", "lr_decay_style", "lr_decay_iters", "min_lr", "warmup",
      "override_lr_scheduler", "use_checkpoint_lr_scheduler", "weight_decay", "optimizer_type",
      "use_bnb_optimizer", "seed", "iteration", "do_train", "do_valid", "do_test", "finetune",
      "batch_size", "extra_save_iters", "checkpoint_validation_with_forward_pass", "no_load_optim",
      "no_load_rng", "no_save_optim", "no_save_rng", "exit_interval", "log_param_norm",
      "log_grad_norm", "log_optimizer_states", "log_gradient_noise_scale", "log_dir",
      "tensorboard_dir", "tensorboard_writer", "use_wandb", "wandb_group", "wandb_team",
      "wandb_project", "wandb_host", "git_hash", "gradient_noise_scale_n_batches",
      "gradient_noise_scale_cpu_offload", "char_level_ppl", "use_mup", "load", "save",
      "config_files",
      // the data
      "data_path", "data_impl", "split", "train_data_paths", "test_data_paths", "valid_data_paths",
      "train_data_weights", "valid_data_weights", "test_data_weights", "weight_by_num_documents",
      "weighted_sampler_alpha", "vocab_file", "merge_file", "tokenizer_type", "num_workers",
      "mmap_warmup", "eod_mask_loss", "reset_position_ids", "reset_attention_mask", "dataset_impl",
      "short_seq_prob", "data_loading", "label_data_paths",
      // how it is started
      "launcher", "deepspeed_slurm", "deepspeed_mpi", "no_ssh_check", "hostfile", "include",
      "exclude", "num_nodes", "num_gpus", "master_addr", "master_port", "detect_nvlink_pairs",
      "account", "user_script", "deepspeed_extra_args", "slurm_comment", "autotuning_run",
      "mp_size",
      // text
      "text_gen_type", "temperature", "top_p", "top_k", "maximum_tokens", "prompt_end",
      "sample_input_file", "sample_output_file", "num_samples", "recompute", "eval_results_prefix",
      "eval_tasks", "return_logits"};
  return names;
}

}  // namespace

bool is_comment_key(const std::string& name) {
  if (name.empty() || name.starts_with('_') || name.starts_with("//") || name.starts_with('#')) {
    return true;
  }
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower.starts_with("comment");
}

bool is_neox_config(const JsonNode& root) {
  // Names that only these programs use, so that misplaced keys of a run's own file stay errors.
  static const std::set<std::string> tell_tales = {"pipe_parallel_size",
                                                   "model_parallel_size",
                                                   "pos_emb",
                                                   "no_weight_tying",
                                                   "lr_decay_iters",
                                                   "gpt_j_residual",
                                                   "synchronize_each_layer",
                                                   "checkpoint_num_layers",
                                                   "keep_last_n_checkpoints",
                                                   "deepspeed_slurm",
                                                   "partition_activations",
                                                   "scaled_upper_triang_masked_softmax_fusion",
                                                   "train_iters",
                                                   "data_impl",
                                                   "output_layer_init_method"};
  constexpr std::ptrdiff_t kSeveral = 3;
  return std::count_if(root.members.begin(), root.members.end(), [](const JsonMember& member) {
           return tell_tales.contains(with_underscores(member.key));
         }) >= kSeveral;
}

bool is_neox_key(const std::string& name) {
  return name.find('-') != std::string::npos || neox_arguments().contains(with_underscores(name));
}

}  // namespace dstrain
