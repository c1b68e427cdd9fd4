// A fuzz target: a reader of files that may come from anybody, fed with arbitrary bytes. It may
// refuse them with the error that its header promises; anything else (another exception, a fault
// that a sanitizer sees, memory or time beyond the limits) is a finding. libFuzzer drives one
// target at a time (fuzz_main.cpp, scripts/fuzz); replay_test.cpp drives all of them with every
// build.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace dstrain::fuzz {

using Bytes = std::span<const std::byte>;

struct FuzzTarget {
  const char* name;
  std::function<void(Bytes)> run;
  /// Globs of real files to start from, relative to the project.
  std::vector<std::filesystem::path> seeds;
};

/// All of them: safetensors, manifest, torch, idx, config, mended, tokenizer, vocabularies,
/// hostfile, ssh_config, known_hosts, agent, handshake, frames, store.
const std::vector<FuzzTarget>& all_targets();
/// Throws std::runtime_error that lists the names.
const FuzzTarget& target_named(const std::string& name);

}  // namespace dstrain::fuzz
