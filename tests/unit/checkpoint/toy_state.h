// A training state of a few small tensors, cut over ranks in every way a run may cut it. The value
// of each element is a formula of (tensor, state, index, salt), so that the loading side knows the
// expected values without asking the saving side.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/comm/rendezvous.h"
#include "tests/harness/thread_world.h"

namespace dstrain::checkpoint_test {

struct ToyTensor {
  std::string name;
  Shape shape;
};

inline const std::vector<ToyTensor>& toy_tensors() {
  static const std::vector<ToyTensor> tensors = {{"embedding.weight", {5, 7}},
                                                 {"blocks.0.attention.query.weight", {6, 8}},
                                                 {"blocks.0.norm.weight", {11}},
                                                 {"scale", {}},
                                                 {"blocks.0.convolution", {3, 4, 2}}};
  return tensors;
}

/// A value that is exactly representable and different for every element, state and salt.
inline float value_of(std::size_t tensor, const std::string& state, std::int64_t index, int salt) {
  const auto state_number = static_cast<std::int64_t>(state.size());
  return static_cast<float>(
             (((salt * 16 + state_number) * 8 + static_cast<std::int64_t>(tensor)) * 64) + index) +
         0.25F;
}

inline std::int64_t global_index(const Piece& piece, std::int64_t in_box) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (int dim = piece.shape.rank() - 1; dim >= 0; --dim) {
    index += (piece.box_start[dim] + in_box % piece.box_extent[dim]) * stride;
    in_box /= piece.box_extent[dim];
    stride *= piece.shape[dim];
  }
  return index;
}

class ToyState {
 public:
  void add(std::size_t tensor, const std::string& state, Piece piece) {
    storage_.push_back(std::vector<float>(static_cast<std::size_t>(piece.flat.size()), NAN));
    tensor_of_.push_back(tensor);
    tensors_.push_back({state, std::move(piece), {}});
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].data = {storage_[i].data(), DType::kF32,
                          Shape{static_cast<std::int64_t>(storage_[i].size())}};
    }
  }
  void fill(int salt) {
    for_each_element([&](float& element, float expected) { element = expected; }, salt);
  }
  [[nodiscard]] bool equals(int salt) {
    bool equal = true;
    for_each_element([&](float& element, float expected) { equal &= element == expected; }, salt);
    return equal;
  }
  [[nodiscard]] bool is_untouched() const {
    for (const auto& values : storage_) {
      for (const float value : values) {
        if (!std::isnan(value)) {
          return false;
        }
      }
    }
    return true;
  }
  [[nodiscard]] std::vector<CheckpointTensor>& tensors() { return tensors_; }

 private:
  template <typename F>
  void for_each_element(F&& visit, int salt) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Piece& piece = tensors_[i].piece;
      for (std::int64_t k = 0; k < piece.flat.size(); ++k) {
        visit(storage_[i][static_cast<std::size_t>(k)],
              value_of(tensor_of_[i], tensors_[i].state, global_index(piece, piece.flat.begin + k),
                       salt));
      }
    }
  }
  std::vector<std::vector<float>> storage_;
  std::vector<std::size_t> tensor_of_;
  std::vector<CheckpointTensor> tensors_;
};

/// One rank's share: dimension `tp_dim` of each tensor that has it is cut into `tp` boxes, each box
/// into `dp` flat ranges, neither of which needs to divide.
struct Cut {
  int dp = 1;
  int tp = 1;
  int tp_dim = 0;
};

inline ToyState toy_share(int rank, Cut cut) {
  const auto part = [](std::int64_t whole, int count, int index) {
    return Range{whole * index / count, whole * (index + 1) / count};
  };
  const int tp_rank = rank % cut.tp;
  const int dp_rank = rank / cut.tp;
  ToyState share;
  for (std::size_t t = 0; t < toy_tensors().size(); ++t) {
    const ToyTensor& tensor = toy_tensors()[t];
    Piece piece{.tensor = tensor.name,
                .shape = tensor.shape,
                .box_start = {},
                .box_extent = {},
                .flat = {}};
    const bool is_cut = cut.tp_dim < tensor.shape.rank();
    for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
      const Range box = dim == cut.tp_dim ? part(tensor.shape[dim], cut.tp, tp_rank)
                                          : Range{0, tensor.shape[dim]};
      piece.box_start.push_back(box.begin);
      piece.box_extent.push_back(box.size());
    }
    if (!is_cut && tp_rank > 0) {
      continue;  // replicated: only the first keeps it
    }
    piece.flat = part(piece.box_extent.numel(), cut.dp, dp_rank);
    for (const char* state : {"parameter", "exp_avg", "exp_avg_sq"}) {
      share.add(t, state, piece);
    }
  }
  return share;
}

inline TrainingState training_state(std::int64_t step) {
  return {.step = step,
          .consumed_samples = step * 64 + 1,
          .optimizer_step = step - 1,
          .scheduler_step = step + 2,
          .skipped_steps = 3,
          .consecutive_skips = 2,
          .loss_scale = 1536.5,
          .scaler_iteration = step + 5,
          .last_overflow = step - 7,
          .hysteresis = 4,
          .seed = 0xfedcba9876543210U,
          .config = "{\"train_batch_size\": 64, \"text\": \"a \\\"quoted\\\" ünïcode\\n\"}\n"};
}

/// Saves from dp·tp ranks as threads.
inline void save_toy(const std::filesystem::path& folder,
                     std::int64_t step,
                     Cut cut,
                     int salt,
                     std::int64_t keep = 100) {
  test::thread_world(cut.dp * cut.tp, [&](Rendezvous& rendezvous) {
    std::vector<int> members;
    for (int rank = 0; rank < rendezvous.world_size(); ++rank) {
      members.push_back(rank);
    }
    const auto world = rendezvous.make_group("world", members);
    ToyState share = toy_share(world->rank(), cut);
    share.fill(salt);
    CheckpointStore(folder).save(training_state(step), share.tensors(), keep, *world);
    return true;
  });
}

/// True if every rank of `cut` finds exactly the values of `salt`.
inline bool holds_toy(const std::filesystem::path& checkpoint, Cut cut, int salt) {
  for (int rank = 0; rank < cut.dp * cut.tp; ++rank) {
    ToyState share = toy_share(rank, cut);
    CheckpointStore::load(checkpoint, share.tensors());
    if (!share.equals(salt)) {
      return false;
    }
  }
  return true;
}

}  // namespace dstrain::checkpoint_test
