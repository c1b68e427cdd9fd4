// The key table itself: nothing honoured without effect, nothing listed twice.
#include <map>
#include <set>

#include "engine/config/config_keys.h"
#include "engine/config/model_families.h"
#include "engine/config/unknown_keys.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

const std::string kOptModel =
    R"(model={"model_type": "opt", "vocab_size": 256, "hidden_size": 64, "ffn_dim": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128})";
const std::string kGptNeoxModel =
    R"(model={"model_type": "gpt_neox", "vocab_size": 256, "hidden_size": 64,
              "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
              "max_position_embeddings": 128})";
const std::string kBloomModel =
    R"(model={"model_type": "bloom", "vocab_size": 256, "hidden_size": 64, "n_layer": 2,
              "n_head": 4})";
const std::string kBaichuanModel =
    R"(model={"model_type": "baichuan", "vocab_size": 256, "hidden_size": 64,
              "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
              "model_max_length": 128})";
const std::string kMixtral = "model.model_type=mixtral";
const std::string kQwen3Moe = "model.model_type=qwen3_moe";
const std::string kOlmoe = "model.model_type=olmoe";
const std::string kGptOss = "model.model_type=gpt_oss";
const std::string kDeepseek = "model.model_type=deepseek_v2";
const std::string kDeepseekV3 = "model.model_type=deepseek_v3";
const std::string kGpt2Model =
    R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4,
       "n_positions": 128})";
const std::string kDecay = R"(scheduler={"type": "WarmupDecayLR"})";
const std::string kCosine = R"(scheduler={"type": "WarmupCosineLR"})";
const std::string kRangeTest = R"(scheduler={"type": "LRRangeTest"})";
const std::string kOneCycle =
    R"(scheduler={"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}})";
const std::string kLongRope =
    R"(model.rope_scaling={"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1],
                           "long_factor": [1, 2, 3, 4, 5, 6, 7, 8]})";
const std::string kSgd = R"(optimizer={"type": "SGD"})";
const std::string kRmsprop = R"(optimizer={"type": "RMSprop"})";
const std::string kLamb = R"(optimizer={"type": "Lamb"})";
const std::string kMuon = R"(optimizer={"type": "Muon"})";
const std::string kOneBitLamb = R"(optimizer={"type": "OneBitLamb"})";
const std::string kZeroOneAdam = R"(optimizer={"type": "ZeroOneAdam"})";
const std::string kRewards = "grpo.reward_command=cat";
const std::string kValues = "ppo.reward_command=cat";
const std::string kAdapters = "peft.target_modules=\"all-linear\"";
const std::string kRobust = "preferences.loss_type=robust";
const std::string kTopK = "gradient_compression.kind=top_k";
const std::string kBf16 = "bf16.enabled=true";
const std::string kCurriculum = "curriculum_learning.enabled=true";
const std::string kQwen2 = "model.model_type=qwen2";
const std::string kF16 = "fp16.enabled=true";
const std::string kFp8 = "fp8.enabled=true";
const std::string kStage1 = "zero_optimization.stage=1";
const std::string kStage3 = "zero_optimization.stage=3";
const std::string kFourBits = "zero_optimization.zero_quantized_gradients=true";
const std::string kOnDisk = "zero_optimization.offload_optimizer.device=nvme";
const std::string kParametersOnDisk = "zero_optimization.offload_param.device=nvme";
const std::string kElastic = R"(elasticity={"enabled": true})";
const std::string kSelective = R"(activation_checkpointing={"granularity": "selective"})";

/// Another legal value for every honoured key, and what has to be set for it to apply.
struct Flip {
  std::string value;
  std::vector<std::string> before = {};
};

const std::map<std::string, Flip>& flips() {
  static const std::map<std::string, Flip> values = {
      {"train_batch_size", {"16"}},
      {"train_micro_batch_size_per_gpu", {"2"}},
      {"gradient_accumulation_steps", {"4"}},
      {"elasticity.enabled", {"true"}},
      {"elasticity.max_train_batch_size", {"64", {kElastic}}},
      {"elasticity.micro_batch_sizes", {"[1, 3]", {kElastic}}},
      {"elasticity.min_gpus", {"2", {kElastic}}},
      {"elasticity.max_gpus", {"99", {kElastic}}},
      {"elasticity.num_gpus_per_node", {"4", {kElastic}}},
      {"elasticity.model_parallel_size", {"2", {kElastic}}},
      {"elasticity.prefer_larger_batch", {"false", {kElastic}}},
      {"elasticity.ignore_non_elastic_batch_info", {"true", {kElastic}}},
      {"elasticity.version", {"0.1", {kElastic}}},
      {"gradient_clipping", {"0.25"}},
      {"tensorboard.enabled", {"true"}},
      {"tensorboard.output_path", {"logs"}},
      {"tensorboard.job_name", {"first"}},
      {"csv_monitor.enabled", {"true"}},
      {"csv_monitor.output_path", {"logs"}},
      {"csv_monitor.job_name", {"first"}},
      {"wandb.enabled", {"true"}},
      {"wandb.project", {"p"}},
      {"wandb.group", {"g"}},
      {"wandb.team", {"t"}},
      {"bf16.enabled", {"true"}},
      {"bf16.bf16_master_weights_and_grads", {"true", {kBf16}}},
      {"bf16.bf16_optimizer_states", {"true", {kBf16}}},
      {"fp16.enabled", {"true"}},
      {"fp8.enabled", {"true"}},
      {"fp8.amax_history_len", {"16", {kFp8}}},
      {"fp8.margin", {"1", {kFp8}}},
      {"fp16.loss_scale", {"128", {kF16}}},
      {"fp16.initial_scale_power", {"8", {kF16}}},
      {"fp16.loss_scale_window", {"50", {kF16}}},
      {"fp16.hysteresis", {"3", {kF16, kStage1}}},
      {"fp16.consecutive_hysteresis", {"true", {kF16, kStage1}}},
      {"fp16.min_loss_scale", {"4", {kF16}}},
      {"data_types.grad_accum_dtype", {"bf16"}},
      {"communication_data_type", {"fp16"}},
      {"prescale_gradients", {"true"}},
      {"gradient_predivide_factor", {"2.5"}},
      {"zero_optimization.stage", {"2"}},
      {"zero_optimization.overlap_comm", {"false"}},
      {"zero_optimization.stage3_prefetch_bucket_size", {"5e7", {kStage3}}},
      {"zero_optimization.stage3_param_persistence_threshold", {"17", {kStage3}}},
      {"zero_optimization.stage3_model_persistence_threshold", {"18", {kStage3}}},
      {"zero_optimization.stage3_max_live_parameters", {"1e9", {kStage3}}},
      {"zero_optimization.stage3_max_reuse_distance", {"1e9", {kStage3}}},
      {"zero_optimization.zero_hpz_partition_size", {"4", {kStage3}}},
      {"zero_optimization.zero_quantized_weights", {"true", {kStage3}}},
      {"zero_optimization.zero_quantized_gradients", {"true", {kStage3}}},
      {"zero_optimization.zero_qgz_partition_size", {"2", {kStage3, kFourBits}}},
      {"zero_optimization.mics_shard_size", {"2", {kStage3}}},
      {"zero_optimization.offload_optimizer.device", {"cpu"}},
      {"zero_optimization.offload_optimizer.nvme_path", {"/scratch", {kOnDisk}}},
      {"zero_optimization.offload_optimizer.buffer_count", {"7", {kOnDisk}}},
      {"zero_optimization.offload_optimizer.ratio", {"0.25", {kOnDisk}}},
      {"zero_optimization.offload_param.device", {"cpu"}},
      {"zero_optimization.offload_param.nvme_path", {"/scratch", {kParametersOnDisk}}},
      {"zero_optimization.offload_param.buffer_count", {"7", {kParametersOnDisk}}},
      {"zero_optimization.sub_group_size", {"1e6", {kOnDisk}}},
      {"aio.block_size", {"8192", {kOnDisk}}},
      {"aio.queue_depth", {"3", {kOnDisk}}},
      {"activation_checkpointing.granularity", {"full"}},
      {"activation_checkpointing.layers", {"1", {kSelective}}},
      {"activation_checkpointing.partition_activations", {"true", {kSelective}}},
      {"activation_checkpointing.cpu_checkpointing", {"true", {kSelective}}},
      {"optimizer.type", {"lion"}},
      {"optimizer.params.freeze_step", {"50", {kOneBitLamb}}},
      {"optimizer.params.coeff_beta", {"0.8", {kOneBitLamb}}},
      {"optimizer.params.factor_max", {"3", {kOneBitLamb}}},
      {"optimizer.params.factor_min", {"0.6", {kOneBitLamb}}},
      {"optimizer.params.factor_threshold", {"0.2", {kOneBitLamb}}},
      {"optimizer.params.var_freeze_step", {"50", {kZeroOneAdam}}},
      {"optimizer.params.var_update_scaler", {"8", {kZeroOneAdam}}},
      {"optimizer.params.local_step_scaler", {"100", {kZeroOneAdam}}},
      {"optimizer.params.local_step_clipper", {"4", {kZeroOneAdam}}},
      {"optimizer.params.adam_w_mode", {"false", {R"(optimizer={"type": "Adam"})"}}},
      {"optimizer.params.lr", {"2e-3"}},
      {"optimizer.params.betas", {"[0.5, 0.6]"}},
      {"optimizer.params.eps", {"1e-6"}},
      {"optimizer.params.weight_decay", {"0.3"}},
      {"optimizer.params.decay", {"\"all\""}},
      {"optimizer.params.bias_correction", {"false"}},
      {"optimizer.params.momentum", {"0.8", {kSgd}}},
      {"optimizer.params.dampening", {"0.1", {kSgd}}},
      {"optimizer.params.nesterov", {"true", {kSgd}}},
      {"optimizer.params.alpha", {"0.9", {kRmsprop}}},
      {"optimizer.params.centered", {"true", {kRmsprop}}},
      {"optimizer.params.max_coeff", {"9", {kLamb}}},
      {"optimizer.params.min_coeff", {"0.1", {kLamb}}},
      {"optimizer.params.eps_inside_sqrt", {"true", {kLamb}}},
      {"optimizer.params.muon_lr", {"0.03", {kMuon}}},
      {"optimizer.params.lr_scale", {R"({"embedding.*": 0.5})"}},
      {"optimizer.params.lr_layer_decay", {"0.9"}},
      {"optimizer.params.adam_lr", {"0.04", {kMuon}}},
      {"scheduler.type", {"WarmupLR"}},
      {"scheduler.params.total_num_steps", {"77", {kCosine}}},
      {"scheduler.params.warmup_num_steps", {"3", {kCosine}}},
      {"scheduler.params.warmup_type", {"linear", {kCosine}}},
      {"scheduler.params.warmup_min_lr", {"1e-5", {kDecay}}},
      {"scheduler.params.warmup_max_lr", {"0.5", {kDecay}}},
      {"scheduler.params.warmup_min_ratio", {"0.1", {kCosine}}},
      {"scheduler.params.cos_min_ratio", {"0.2", {kCosine}}},
      {"scheduler.params.lr_range_test_min_lr", {"0.1", {kRangeTest}}},
      {"scheduler.params.lr_range_test_step_size", {"9", {kRangeTest}}},
      {"scheduler.params.lr_range_test_step_rate", {"2.5", {kRangeTest}}},
      {"scheduler.params.lr_range_test_staircase", {"true", {kRangeTest}}},
      {"scheduler.params.cycle_min_lr", {"0.2", {kOneCycle}}},
      {"scheduler.params.cycle_max_lr", {"2", {kOneCycle}}},
      {"scheduler.params.decay_lr_rate", {"0.5", {kOneCycle}}},
      {"scheduler.params.cycle_first_step_size", {"9", {kOneCycle}}},
      {"scheduler.params.cycle_second_step_size", {"8", {kOneCycle}}},
      {"scheduler.params.cycle_first_stair_count", {"3", {kOneCycle}}},
      {"scheduler.params.cycle_second_stair_count", {"4", {kOneCycle}}},
      {"scheduler.params.decay_step_size", {"5", {kOneCycle}}},
      {"scheduler.params.cycle_momentum", {"false", {kOneCycle}}},
      {"scheduler.params.cycle_min_mom", {"0.7", {kOneCycle}}},
      {"scheduler.params.cycle_max_mom", {"0.95", {kOneCycle}}},
      {"scheduler.params.decay_mom_rate", {"0.1", {kOneCycle}}},
      {"curriculum_learning.enabled", {"true"}},
      {"curriculum_learning.min_difficulty", {"8", {kCurriculum}}},
      {"curriculum_learning.max_difficulty", {"64", {kCurriculum}}},
      {"curriculum_learning.schedule_type", {"fixed_root", {kCurriculum}}},
      {"curriculum_learning.schedule_config.total_curriculum_step", {"30", {kCurriculum}}},
      {"curriculum_learning.schedule_config.difficulty_step", {"4", {kCurriculum}}},
      {"curriculum_learning.schedule_config.root_degree", {"2", {kCurriculum}}},
      {"curriculum_learning.schedule_config.difficulty", {"[8, 16]", {kCurriculum}}},
      {"curriculum_learning.schedule_config.max_step", {"[5]", {kCurriculum}}},
      {"pipeline.stages", {"2"}},
      {"pipeline.schedule", {"gpipe"}},
      {"pipeline.virtual_stages", {"2"}},
      {"pipeline.partition", {"[1, 1]"}},
      {"context_parallel.size", {"2"}},
      {"context_parallel.kind",
       {"ulysses", {"context_parallel.size=2", "context_parallel.kind=ring"}}},
      {"context_parallel.order", {"contiguous"}},
      {"context_parallel.ulysses_size", {"2"}},
      {"expert_parallel.size", {"2"}},
      {"expert_parallel.tensor_size", {"1"}},
      {"sequence_parallel_size", {"2"}},
      {"hierarchical_context_parallel_sizes", {"[2, 2]"}},
      {"tensor_parallel.size", {"2"}},
      {"tensor_parallel.sequence_parallel", {"true"}},
      {"steps_per_print", {"3"}},
      {"wall_clock_breakdown", {"true"}},
      {"model.model_type", {"mistral"}},
      {"model.vocab_size", {"300"}},
      {"model.hidden_size", {"128"}},
      {"model.intermediate_size", {"100"}},
      {"model.num_hidden_layers", {"3"}},
      {"model.num_attention_heads", {"2"}},
      {"model.num_key_value_heads", {"1"}},
      {"model.head_dim", {"8"}},
      {"model.max_position_embeddings", {"200"}},
      {"model.rms_norm_eps", {"1e-4"}},
      {"model.rope_theta", {"5e5"}},
      {"model.rope_scaling",
       {R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 64})"}},
      {"model.partial_rotary_factor", {"0.5", {"model.model_type=phi3"}}},
      {"model.original_max_position_embeddings", {"64", {"model.model_type=phi3", kLongRope}}},
      {"model.no_rope_layers",
       {"[0, 1]", {"model.model_type=smollm3", "model.no_rope_layers=[1, 1]"}}},
      {"model.layer_types",
       {R"(["full_attention", "sliding_attention"])",
        {"model.model_type=olmo3",
         R"(model.layer_types=["sliding_attention", "full_attention"])"}}},
      {"model.rope_local_base_freq", {"500", {"model.model_type=gemma3_text"}}},
      {"model.query_pre_attn_scalar", {"100", {"model.model_type=gemma2"}}},
      {"model.attn_logit_softcapping", {"40", {"model.model_type=gemma2"}}},
      {"model.final_logit_softcapping", {"20", {"model.model_type=gemma2"}}},
      {"model.hidden_activation", {"silu", {"model.model_type=gemma2"}}},
      {"model.use_parallel_residual", {"false", {kGptNeoxModel}}},
      {"model.layer_norm_eps", {"1e-4", {kGptNeoxModel}}},
      {"model.rotary_emb_base", {"5e5", {kGptNeoxModel}}},
      {"model.rotary_pct", {"0.5", {kGptNeoxModel}}},
      {"model.ffn_dim", {"100", {kOptModel}}},
      {"model.enable_bias", {"false", {kOptModel}}},
      {"model.init_std", {"0.3", {kOptModel}}},
      {"model.seq_length", {"200", {kBloomModel}}},
      {"model.model_max_length", {"200", {kBaichuanModel}}},
      {"model.norm_head", {"true", {kBaichuanModel}}},
      {"model.num_local_experts", {"6", {kMixtral}}},
      {"model.num_experts", {"9", {kOlmoe}}},
      {"model.num_experts_per_tok", {"3", {kMixtral}}},
      {"model.norm_topk_prob", {"true", {kOlmoe}}},
      {"model.moe_intermediate_size", {"40", {kQwen3Moe}}},
      {"model.mlp_only_layers", {"[1]", {kQwen3Moe}}},
      {"model.swiglu_limit", {"5", {kGptOss}}},
      {"model.kv_lora_rank", {"40", {kDeepseek}}},
      {"model.q_lora_rank", {"null", {kDeepseek}}},
      {"model.qk_nope_head_dim", {"70", {kDeepseek}}},
      {"model.qk_rope_head_dim", {"70", {kDeepseek}}},
      {"model.v_head_dim", {"70", {kDeepseek}}},
      {"model.n_routed_experts", {"9", {kDeepseek}}},
      {"model.n_shared_experts", {"1", {kDeepseek}}},
      {"model.routed_scaling_factor", {"16", {kDeepseek}}},
      {"model.first_k_dense_replace", {"1", {kDeepseek}}},
      {"model.moe_router_bias_update_rate", {"0", {kDeepseekV3}}},
      {"model.topk_method",
       {"group_limited_greedy", {kDeepseek, "model.n_group=8", "model.topk_group=3"}}},
      {"model.n_group",
       {"4",
        {kDeepseek, "model.topk_method=group_limited_greedy", "model.topk_group=2",
         "model.n_group=8"}}},
      {"model.topk_group",
       {"2", {kDeepseek, "model.topk_method=group_limited_greedy", "model.n_group=8"}}},
      {"model.output_router_logits", {"true", {kMixtral}}},
      {"model.router_aux_loss_coef", {"0.5", {kMixtral}}},
      {"model.router_z_loss_coef", {"0.5", {kMixtral}}},
      {"model.norm_epsilon", {"1e-4", {"model.model_type=starcoder2"}}},
      {"model.use_bias", {"false", {"model.model_type=starcoder2"}}},
      {"model.hidden_act", {"gelu_pytorch_tanh"}},
      {"model.activation_function", {"silu", {kGpt2Model}}},
      {"model.sliding_window", {"2048", {"model.model_type=mistral"}}},
      {"model.use_sliding_window", {"true", {kQwen2, "model.max_window_layers=1"}}},
      {"model.max_window_layers",
       {"1", {kQwen2, "model.use_sliding_window=true", "model.max_window_layers=0"}}},
      {"model.attention_bias", {"true"}},
      {"model.mlp_bias", {"true"}},
      {"model.n_embd", {"128", {kGpt2Model}}},
      {"model.n_layer", {"3", {kGpt2Model}}},
      {"model.n_head", {"2", {kGpt2Model}}},
      {"model.n_positions", {"200", {kGpt2Model}}},
      {"model.n_inner", {"100", {kGpt2Model}}},
      {"model.layer_norm_epsilon", {"1e-4", {kGpt2Model}}},
      {"model.resid_pdrop", {"0.1", {kGpt2Model}}},
      {"model.embd_pdrop", {"0.1", {kGpt2Model}}},
      {"model.attn_pdrop", {"0.1", {kGpt2Model}}},
      {"model.attention_dropout", {"0.1"}},
      {"model.residual_dropout", {"0.1", {"model.model_type=starcoder2"}}},
      {"model.embedding_dropout", {"0.1", {"model.model_type=starcoder2"}}},
      {"model.hidden_dropout", {"0.1", {kGptNeoxModel, "model.use_parallel_residual=false"}}},
      {"model.dropout", {"0.1", {kOptModel}}},
      {"model.tie_word_embeddings", {"true"}},
      {"model.score_head", {"true"}},
      {"model.value_head", {"true"}},
      {"model.initial_weights", {"elsewhere"}},
      {"model.initializer_range", {"0.5"}},
      {"data.train", {"elsewhere"}},
      {"data.validation", {"elsewhere"}},
      {"data.sequence_length", {"32"}},
      {"data.document_attention", {"true"}},
      {"data.mask_document_ends", {"true"}},
      {"data.end_of_document", {"7"}},
      {"data.pack", {"best_fit"}},
      {"data.samples", {"true"}},
      {"data.long_samples", {"drop"}},
      {"data.tokenizer", {"models/other", {"data.train=\"a.jsonl\""}}},
      {"data.chat_template", {"chat.jinja", {"data.train=\"a.jsonl\""}}},
      {"data.train_on", {"all", {"data.train=\"a.jsonl\""}}},
      {"data.answers_begin", {"question", {"data.train=\"a.jsonl\""}}},
      {"data.stop_token", {"<|end|>", {"data.train=\"a.jsonl\""}}},
      {"data.weights_by", {"tokens"}},
      {"rampup_batch_size", {"[1, 1, 10]"}},
      {"training.steps", {"11"}},
      {"training.seed", {"2"}},
      {"training.eval_interval", {"5"}},
      {"training.eval_batches", {"3"}},
      {"training.device", {"cpu"}},
      {"training.threads", {"3"}},
      {"training.tf32", {"true"}},
      {"training.attention", {"auto"}},
      {"training.matmul_algorithms", {"elsewhere"}},
      {"training.block_order", {"vertical"}},
      {"training.expert_capacity_factor", {"1.25", {kMixtral}}},
      {"training.loss_tile_tokens", {"8"}},
      {"training.mlp_tile_tokens", {"8"}},
      {"peft.target_modules", {"\"all-linear\""}},
      {"peft.modules_to_save", {"[\"lm_head\"]", {kAdapters}}},
      {"peft.r", {"4", {kAdapters}}},
      {"quantization_config.load_in_4bit", {"true"}},
      {"quantization_config.load_in_8bit", {"true"}},
      {"quantization_config.bnb_4bit_compute_dtype",
       {"float32", {"quantization_config.load_in_4bit=true"}}},
      {"peft.lora_alpha", {"32", {kAdapters}}},
      {"peft.use_rslora", {"true", {kAdapters}}},
      {"peft.use_dora", {"true", {kAdapters}}},
      {"peft.lora_dropout", {"0.25", {kAdapters}}},
      {"training.neftune_noise_alpha", {"5"}},
      {"training.eval_prompts", {"[\"Once\"]"}},
      {"training.eval_tokens", {"5", {"training.eval_prompts=[\"Once\"]"}}},
      {"grpo.reward_command", {"cat"}},
      {"grpo.reward_model", {R"("tests/golden/reward-tiny")"}},
      {"grpo.num_generations", {"4", {kRewards}}},
      {"grpo.max_completion_length", {"5", {kRewards}}},
      {"grpo.top_k", {"5", {kRewards}}},
      {"grpo.top_p", {"0.5", {kRewards}}},
      {"grpo.beta", {"0.5", {kRewards}}},
      {"grpo.use_bias_correction_kl", {"false", {kRewards}}},
      {"grpo.loss_type", {"dr_grpo", {kRewards}}},
      {"grpo.scale_rewards", {"batch", {kRewards}}},
      {"grpo.mask_truncated_completions", {"true", {kRewards}}},
      {"grpo.num_iterations", {"3", {kRewards}}},
      {"grpo.num_mini_batches", {"2", {kRewards}}},
      {"grpo.local_rollout_forward_batch_size", {"2", {kRewards}}},
      {"grpo.epsilon", {"0.1", {kRewards}}},
      {"grpo.epsilon_high", {"0.28", {kRewards}}},
      {"ppo.reward_command", {"cat"}},
      {"ppo.reward_model", {R"("tests/golden/reward-tiny")"}},
      {"ppo.response_length", {"5", {kValues}}},
      {"ppo.top_k", {"5", {kValues}}},
      {"ppo.top_p", {"0.5", {kValues}}},
      {"ppo.num_mini_batches", {"2", {kValues}}},
      {"ppo.local_rollout_forward_batch_size", {"2", {kValues}}},
      {"ppo.num_ppo_epochs", {"3", {kValues}}},
      {"ppo.cliprange", {"0.1", {kValues}}},
      {"ppo.kl_coef", {"0.5", {kValues}}},
      {"ppo.kl_estimator", {"k3", {kValues}}},
      {"ppo.vf_coef", {"0.5", {kValues}}},
      {"ppo.cliprange_value", {"0.1", {kValues}}},
      {"ppo.gamma", {"0.5", {kValues}}},
      {"ppo.lam", {"0.5", {kValues}}},
      {"ppo.whiten_rewards", {"true", {kValues}}},
      {"ppo.missing_eos_penalty", {"0.5", {kValues}}},
      {"preferences.loss_type", {"ipo"}},
      {"preferences.beta", {"0.5", {kRobust}}},
      {"preferences.label_smoothing", {"0.25", {kRobust}}},
      {"preferences.center_rewards_coefficient", {"0.01", {kRobust}}},
      {"preferences.desirable_weight", {"2", {kRobust}}},
      {"preferences.undesirable_weight", {"2", {kRobust}}},
      {"training.freeze", {"[\"embedding.*\"]"}},
      {"training.cuda_graphs", {"true"}},
      {"training.output_dir", {"elsewhere"}},
      {"training.max_consecutive_skips", {"7"}},
      {"training.replica_check_interval", {"100"}},
      {"training.trace.steps", {"\"20-24\""}},
      {"training.trace.ranks", {"\"0-3\""}},
      {"checkpoint.interval", {"5"}},
      {"checkpoint.keep", {"9"}},
      {"checkpoint.resume", {"never"}},
      {"checkpoint.on_save_failure", {"continue"}},
      {"network.security", {"encrypted"}},
      {"gradient_compression.kind", {"top_k"}},
      {"gradient_compression.start_step", {"7", {kTopK}}},
      {"gradient_compression.rank", {"2", {"gradient_compression.kind=powersgd"}}},
      {"gradient_compression.density", {"0.5", {kTopK}}},
      {"checkpoint.async", {"true"}},
  };
  return values;
}

}  // namespace

TEST_CASE("flipping any honoured key changes the config", "[spec][keys]") {
  std::set<std::string> seen;
  for (const Key& key : all_keys()) {
    if (key.status != KeyStatus::kHonoured) continue;
    INFO(key.path);
    const auto flip = flips().find(key.path);
    REQUIRE(flip != flips().end());  // a new honoured key needs a line above
    seen.insert(key.path);
    std::vector<std::string> overrides = flip->second.before;
    const LoadedConfig before = load_tiny(overrides);
    overrides.push_back(key.path + "=" + flip->second.value);
    const LoadedConfig after = load_tiny(overrides);
    CHECK_FALSE(before.config == after.config);
    CHECK(origin_of(after, key.path) == "--set");
    CHECK(value_of_path(after, key.path) != value_of_path(before, key.path));
  }
  CHECK(seen.size() == flips().size());
}

TEST_CASE("every refused or ineffective key says why", "[spec][keys]") {
  for (const Key& key : all_keys()) {
    INFO(key.path);
    const bool needs_note = key.status == KeyStatus::kRefused || key.status == KeyStatus::kNoEffect;
    if (needs_note) CHECK_FALSE(key.note.empty());
    if (key.status == KeyStatus::kHonoured) {
      CHECK(key.set);
      CHECK(key.get);
    }
    if (key.applies) CHECK_FALSE(key.applies_to.empty());
  }
}

TEST_CASE("no path of the table means two things at once", "[spec][keys]") {
  std::vector<Config> configs;
  for (const std::string& model_type : model_families()) {
    configs.emplace_back().model.model_type = model_type;
  }
  for (const auto scheduler :
       {SchedulerKind::kConstant, SchedulerKind::kWarmup, SchedulerKind::kWarmupDecay,
        SchedulerKind::kWarmupCosine, SchedulerKind::kRangeTest, SchedulerKind::kOneCycle}) {
    configs.emplace_back().scheduler.kind = scheduler;
  }
  for (const auto optimizer :
       {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kAdagrad, OptimizerKind::kRmsprop,
        OptimizerKind::kLion, OptimizerKind::kLamb, OptimizerKind::kMuon,
        OptimizerKind::kOneBitAdam, OptimizerKind::kZeroOneAdam, OptimizerKind::kOneBitLamb}) {
    configs.emplace_back().optimizer.kind = optimizer;
  }
  for (const auto open : {OpenPrecision{.bf16 = true}, OpenPrecision{.f16 = true},
                          OpenPrecision{.bf16 = true, .f16 = true}}) {
    for (const int stage : {0, 1}) {
      Config& config = configs.emplace_back();
      config.open_precision = open;
      config.zero.stage = stage;
    }
  }
  for (const auto precision : {Precision::kF32, Precision::kBF16, Precision::kF16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const double loss_scale : {0.0, 128.0}) {
        Config& config = configs.emplace_back();
        config.precision = precision;
        config.zero.stage = stage;
        config.loss_scale.static_scale = loss_scale;
      }
    }
  }
  configs.emplace_back().offload.states = OffloadTo::kDisk;
  for (const auto granularity : {RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
    configs.emplace_back().recompute.granularity = granularity;
  }
  for (const Config& config : configs) {
    std::set<std::string> paths;
    for (const Key& key : all_keys()) {
      if (!key.applies_in(config)) continue;
      INFO(key.path);
      CHECK(paths.insert(key.path).second);
      for (const std::string& alias : key.aliases) {
        CHECK(paths.insert(alias).second);
      }
    }
  }
}

}  // namespace dstrain
