#include "engine/data/duplicate_finder.h"

#include <memory>

#include <xxhash.h>

#include "engine/data/text_reader.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

DuplicateFinder::DuplicateFinder(const std::vector<InputFile>& files) {
  for (const InputFile& file : files) {
    ++files_of_size_[file.bytes];
  }
}

// A file that shares its size is read here and once more to be encoded: the second time it comes
// from the page cache, and a huge one seldom has a twin of the very same size.
bool DuplicateFinder::was_there(const InputFile& file,
                                const std::function<bool()>& stop_requested) {
  if (files_of_size_[file.bytes] < 2) {
    return false;
  }
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  check(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK, "no hash state");
  TextReader reader(file.path);
  const auto whole = [](std::string_view text) { return text.size(); };
  while (!stop_requested() && reader.next(buffer_, kReadBytes, whole)) {
    XXH3_128bits_update(state.get(), buffer_.data(), buffer_.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return !seen_.insert({hash.low64, hash.high64}).second;
}

}  // namespace dstrain
