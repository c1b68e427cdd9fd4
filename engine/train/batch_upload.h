// BatchUpload: copies token ids to the device, with what the run's rules derive from the documents
// in them: where ranks share sequences, each its own tokens. It has two micro-batches' worth of the
// host's memory, of the kind that copies are fastest from, used in turns: while the device still
// computes with one, the host already reads the next, and waits only for the copy before the last.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "engine/data/documents.h"
#include "engine/plan/token_share.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

/// The purpose of a micro-batch: one of an evaluation drops nothing.
enum class BatchUse : std::uint8_t { kTraining, kEvaluation };

/// Fills [B, T] inputs and targets with the samples from `first_sample` on.
using LoadBatch = std::function<void(
    std::int64_t first_sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets)>;

class BatchUpload {
 public:
  /// Uploads micro-batches of `sequences` sequences of at most that many tokens, on `stream`.
  /// Device and stream must outlive it.
  BatchUpload(Device& device,
              Stream& stream,
              std::int64_t sequences,
              std::int64_t sequence,
              const DocumentRules& documents,
              const ContextShape& context = {});
  /// The host's memory that one of the two micro-batches takes.
  static std::int64_t host_bytes(std::int64_t tokens,
                                 const DocumentRules& documents,
                                 const ContextShape& context);
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;
  /// Waits for copies under way.
  ~BatchUpload();

  /// The tensors to copy to, i32; an empty one gets no copy.
  struct Places {
    Tensor inputs;  ///< an element a token of this rank, as the next two
    Tensor targets;
    Tensor token_positions;
    Tensor query_positions;  ///< an element a token that this rank attends for
    Tensor first_sample;     ///< as kernels/dropout.h wants it
    Tensor loss_rows;        ///< [3, N]: what LossRows fills, of this rank's targets

    [[nodiscard]] bool want_tokens() const {
      return !inputs.empty() || !targets.empty() || !token_positions.empty();
    }
  };
  /// The samples to read: those of a micro-batch, and the first `sequence` tokens of each.
  struct Samples {
    std::int64_t first_sample;
    std::int64_t counted;  ///< of how many samples the targets count
    std::int64_t sequence;
    BatchUse use;
  };
  struct Uploaded {
    std::int64_t counted = 0;    ///< targets that count, in the samples that count
    std::int64_t loss_rows = 0;  ///< M of LossRows; 0 where they are not wanted
  };
  /// Enqueues the copies. Nothing counts where no tokens are wanted.
  Uploaded upload(const LoadBatch& data, const Samples& samples, const Places& to);

 private:
  static constexpr std::int64_t kSampleWords = 2;
  struct Buffer {
    // The words of the first sample, inputs, targets, positions in documents; where ranks share
    // sequences, behind them this rank's parts; and LossRows of targets that may not count.
    DeviceMemory memory;
    Event copied;
  };

  /// Uploads everything from inputs on: `memory` has room for it.
  Uploaded upload_tokens(const LoadBatch& data,
                         const Samples& samples,
                         std::int32_t* memory,
                         const Places& to);

  Device& device_;
  Stream& stream_;
  std::int64_t tokens_;
  std::int64_t sequence_;
  DocumentRules documents_;
  ContextShape context_;
  std::array<Buffer, 2> buffers_;
  std::size_t next_ = 0;
};

}  // namespace dstrain
