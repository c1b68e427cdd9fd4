#include <utility>

#include "engine/data/sequences.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

class StreamSequences final : public Sequences {
 public:
  StreamSequences(std::unique_ptr<TokenFile> file, std::int64_t sequence_T)
      : file_(std::move(file)), sequence_T_(sequence_T) {
    check(count() > 0, "{} tokens for sequences of {}", file_->num_tokens(), sequence_T_);
  }

  [[nodiscard]] std::int64_t count() const override {
    return (file_->num_tokens() - 1) / sequence_T_;
  }
  [[nodiscard]] std::int64_t tokens() const override { return file_->num_tokens(); }
  [[nodiscard]] double mean_tokens() const override { return static_cast<double>(sequence_T_); }
  void will_need(std::int64_t index) const override {
    file_->will_need(index * sequence_T_, sequence_T_ + 1);
  }
  void read(std::int64_t index,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const override {
    file_->read(index * sequence_T_, inputs);
    file_->read(index * sequence_T_ + 1, targets);
  }

 private:
  std::unique_ptr<TokenFile> file_;
  std::int64_t sequence_T_;
};

}  // namespace

std::unique_ptr<Sequences> cut_stream(std::unique_ptr<TokenFile> file, std::int64_t sequence_T) {
  return std::make_unique<StreamSequences>(std::move(file), sequence_T);
}

}  // namespace dstrain
