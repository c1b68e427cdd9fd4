// Puts a file's name in front of errors about a value in it.
#pragma once

#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

/// Returns what `body` gives for the file's root.
template <typename Body>
auto reading(const TorchFile& file, Body&& body) {
  try {
    return std::forward<Body>(body)(file.root());
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.path(), error.what()));
  }
}

}  // namespace dstrain
