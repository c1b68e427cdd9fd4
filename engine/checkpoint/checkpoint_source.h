// CheckpointSource: one of our own checkpoints as a TensorSource. The pieces that a read touches
// are put together, whoever wrote them; each is held against its checksum the first time.
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/piece_reader.h"
#include "engine/checkpoint/tensor_source.h"

namespace dstrain {

class CheckpointSource final : public TensorSource {
 public:
  /// `checkpoint`: a folder that holds a manifest.json. Throws CheckpointError if it is not whole.
  explicit CheckpointSource(std::filesystem::path checkpoint);

  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override;

  [[nodiscard]] const TrainingState& training() const { return manifest_.training; }

 private:
  /// The piece's bytes in its file; throws CheckpointError unless they are those written.
  [[nodiscard]] std::span<const std::byte> verified(const StoredPiece& piece) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<Entry> entries_;
  // Keeps what reading has found out so far.
  mutable PieceReader pieces_;
  mutable std::set<const StoredPiece*> verified_;
};

}  // namespace dstrain
