// PyTorch's losses (tests/golden), on a GPU. Built twice, as gpu_ladder_test.cpp.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/initial_weights.h"
#include "kernels/core/trace_log.h"
#include "tests/harness/golden_model.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/gpu_here.h"

namespace dstrain::test {
namespace {

/// All ten where that is quick.
std::int64_t golden_steps() {
  return find_cuda_devices().names.front().starts_with("emulated") ? 2 : 10;
}

/// The samples of which PyTorch's losses are; `golden` must outlive it.
LoadBatch batches_of(const GoldenModel& golden) {
  return [&golden](std::int64_t first_sample, std::span<std::int32_t> inputs,
                   std::span<std::int32_t> targets) {
    const std::int64_t batch = first_sample / golden.batch();
    const auto skip = first_sample % golden.batch() *
                      static_cast<std::int64_t>(golden.inputs(batch).size()) / golden.batch();
    const std::vector<std::int32_t> x = golden.inputs(batch);
    const std::vector<std::int32_t> y = golden.targets(batch);
    std::copy_n(x.begin() + skip, inputs.size(), inputs.begin());
    std::copy_n(y.begin() + skip, targets.size(), targets.begin());
  };
}

struct GoldenSteps {
  std::vector<double> losses;  ///< and the one after the last step
  std::vector<double> grad_norms;
};
GoldenSteps run_golden_on_gpu(const GoldenModel& golden, const LoadedConfig& loaded) {
  const auto world = make_local_rendezvous(1);
  const std::unique_ptr<Store> store = make_memory_store();
  const auto engine = make_tiny_engine(loaded.config, *world[0], store.get());
  golden.load_into(*engine);
  const LoadBatch load = batches_of(golden);
  const auto tokens = static_cast<double>(engine->plan().batch.global_tokens());
  GoldenSteps run;
  for (std::int64_t step = 0; step < golden_steps(); ++step) {
    const EngineStep result =
        engine->train_step(load, step * golden.batch(),
                           {.learning_rate = 1e-3, .update = step + 1, .gradient_clipping = 1.0});
    run.losses.push_back(result.local_loss_sum / tokens);
    run.grad_norms.push_back(result.stats.grad_norm);
  }
  run.losses.push_back(engine->evaluate(load, golden_steps() * golden.batch()).local_loss_sum /
                       tokens);
  return run;
}

TEST_CASE("on a GPU the losses are PyTorch's", "[parity][gpu][golden]") {
  if (!has_gpu()) {
    return;
  }
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    INFO(name);
    const GoldenModel golden(name);
    const GoldenSteps run = run_golden_on_gpu(golden, golden.config("fp32"));
    const std::vector<double> losses = golden.losses();
    const std::vector<double> norms = golden.grad_norms();
    for (std::size_t step = 0; step < run.losses.size(); ++step) {
      INFO("step " << step);
      CHECK(run.losses[step] == Approx(losses.at(step)).epsilon(1e-5).margin(0));
    }
    for (std::size_t step = 0; step < run.grad_norms.size(); ++step) {
      INFO("step " << step);
      CHECK(run.grad_norms[step] == Approx(norms.at(step)).epsilon(1e-4).margin(0));
    }
  }
}

TEST_CASE("on a GPU the losses in 8 bits are PyTorch's in 8 bits", "[parity][gpu][golden][fp8]") {
  if (!has_gpu() || !has_fp8()) {
    return;
  }
  const GoldenModel golden("fp8-tiny");
  const GoldenSteps run =
      run_golden_on_gpu(golden, golden.config("fp32", 1, {{"fp8", {{"enabled", true}}}}));
  const std::vector<double> losses = golden.fp8_losses();
  // PyTorch's and the emulated ones' sums of products are f32's, a real tensor core's are shorter.
  const bool is_emulated = find_cuda_devices().names.front().find("emulated") != std::string::npos;
  CHECK(run.losses.front() == Approx(losses.front()).epsilon(is_emulated ? 1e-5 : 3e-4).margin(0));
  for (std::size_t step = 0; step < run.losses.size(); ++step) {
    INFO("step " << step);
    CHECK(run.losses[step] == Approx(losses.at(step)).epsilon(3e-3).margin(0));
  }
}

TEST_CASE("on GPUs a run that starts from a Hugging Face folder has PyTorch's losses",
          "[parity][gpu][golden]") {
  if (!has_gpu()) {
    return;
  }
  const GoldenModel golden("llama-tiny");
  const auto ranks = static_cast<int>(golden.batch());
  const LoadedConfig loaded =
      golden.config("fp32", ranks,
                    {{"model", golden.folder()},
                     {"train_micro_batch_size_per_gpu", 1},
                     {"zero_optimization", {{"stage", 3}}}});  // each reads its slice
  REQUIRE(loaded.config.initial_weights == golden.folder());
  const LoadBatch load = batches_of(golden);
  const std::unique_ptr<Store> store = make_memory_store();
  const auto sums = thread_world(ranks, [&](Rendezvous& rank) {
    const auto engine = make_tiny_engine(loaded.config, rank, store.get());
    start_from_weights(loaded.config, *engine);
    std::vector<double> of_steps;
    for (std::int64_t step = 0; step < golden_steps(); ++step) {
      of_steps.push_back(
          engine
              ->train_step(load, step * golden.batch(),
                           {.learning_rate = 1e-3, .update = step + 1, .gradient_clipping = 1.0})
              .local_loss_sum);
    }
    return of_steps;
  });
  const auto tokens = static_cast<double>(golden.batch() * loaded.config.data.sequence_length);
  const std::vector<double> expected = golden.losses();
  for (std::size_t step = 0; step < sums.front().size(); ++step) {
    double sum = 0.0;
    for (const std::vector<double>& of_rank : sums) {
      sum += of_rank[step];
    }
    INFO("step " << step);
    CHECK(sum / tokens == Approx(expected.at(step)).epsilon(1e-5).margin(0));
  }
}

TEST_CASE("a trace of a step has what the GPU did in it", "[parity][gpu][trace]") {
  if (!has_gpu()) {
    return;
  }
  const bool is_emulated = find_cuda_devices().names.front().find("emulated") != std::string::npos;
  TraceLog log;
  const TraceLog::Thread bound(&log, "compute");
  const GoldenModel golden("llama-tiny");
  const LoadedConfig loaded = golden.config("fp32");
  const auto world = make_local_rendezvous(1);
  const std::unique_ptr<Store> store = make_memory_store();
  const auto engine = make_tiny_engine(loaded.config, *world[0], store.get());
  golden.load_into(*engine);
  const LoadBatch load = batches_of(golden);
  const auto train = [&](std::int64_t step) {
    (void)engine->train_step(load, step * golden.batch(),
                             {.learning_rate = 1e-3, .update = step + 1});
  };
  train(0);
  const std::vector<std::string> reasons = log.start();
  CAPTURE(reasons);
  const std::int64_t begin = TraceLog::now();
  train(1);
  const std::int64_t end = TraceLog::now();
  std::size_t kernels = 0;
  bool has_norm = false;
  for (const TraceTrack& track : log.stop()) {
    for (const TraceEvent& event : track.events) {
      if (event.kind != TraceKind::kKernel) continue;
      ++kernels;
      has_norm = has_norm || event.name.find("norm_forward") != std::string_view::npos;
      CHECK(event.begin_ns <= event.end_ns);
      if (is_emulated) continue;  // its kernels run as they are enqueued, and it makes up two
      CHECK(event.begin_ns >= begin);
      CHECK(event.end_ns <= end);
    }
  }
  REQUIRE(kernels > 0);
  if (!is_emulated) {
    CHECK(kernels > 50);
    CHECK(has_norm);
  }
}

}  // namespace
}  // namespace dstrain::test
