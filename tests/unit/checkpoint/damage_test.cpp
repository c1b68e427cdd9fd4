// Bytes that changed on the disk after a save: every one of them must be noticed.
#include <optional>

#include "engine/checkpoint/safetensors.h"
#include "tests/harness/sweep.h"
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;

namespace {

/// The error of loading everything; "" if it loads.
std::string complaint(const std::filesystem::path& checkpoint, ToyState& share) {
  try {
    CheckpointStore::load(checkpoint, share.tensors());
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

/// Replaces one byte for as long as it lives.
class ChangedByte {
 public:
  ChangedByte(std::filesystem::path path, const std::string& content, std::size_t at, char byte)
      : path_(std::move(path)), at_(at), was_(content[at]) {
    put(byte);
  }
  ChangedByte(const ChangedByte&) = delete;
  ChangedByte& operator=(const ChangedByte&) = delete;
  ~ChangedByte() { put(was_); }

 private:
  void put(char byte) {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at_));
    file.put(byte);
  }
  std::filesystem::path path_;
  std::size_t at_;
  char was_;
};

/// The name in its file of the piece that holds a byte; "" for a byte of the header.
std::string piece_at(const SafetensorsFile& file, std::size_t at) {
  for (const auto& [name, entry] : file.tensors()) {
    const auto byte = static_cast<std::int64_t>(at - file.header().size());
    if (at >= file.header().size() && entry.begin_byte <= byte && byte < entry.end_byte) {
      return name;
    }
  }
  return "";
}

}  // namespace

TEST_CASE("any changed byte of a checkpoint is noticed, its file and tensor named",
          "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const auto checkpoint = folder.path() / "step-00000001";
  std::size_t changes = 0;
  const auto step = static_cast<std::size_t>(dstrain::testing::one_in(7));
  for (const std::string name :
       {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"}) {
    const std::string content = read_file(checkpoint / name);
    std::optional<SafetensorsFile> file;
    if (name != "manifest.json") {
      file.emplace(checkpoint / name);
    }
    // Where a reader decides how to go on, every other value; elsewhere one bit, and all of them.
    // Where one value in `step` is tried, the first differs from byte to byte.
    const std::size_t decisive = file ? 8 : content.find('\n');
    for (std::size_t at = 0; at < content.size(); at += at < decisive ? 1 : step) {
      const std::string piece = file ? piece_at(*file, at) : "";
      std::vector<int> values{1 << (at % 8), 255};
      if (at < decisive) {
        values.clear();
        for (std::size_t value = 1 + at % step; value < 256; value += step)
          values.push_back(static_cast<int>(value));
      }
      for (const int flipped : values) {
        const ChangedByte change(checkpoint / name, content, at,
                                 static_cast<char>(content[at] ^ flipped));
        ToyState share = toy_share(0, {});
        const std::string message = complaint(checkpoint, share);
        ++changes;
        // Nothing is loaded where the tables of contents are damaged.
        if (message.find(name) == std::string::npos || message.find(piece) == std::string::npos ||
            (piece.empty() && !share.is_untouched())) {
          FAIL("byte " << at << " of " << name << " ^ " << flipped << ": " << message);
        }
      }
    }
  }
  CHECK(changes > 20'000 / step);
  ToyState share = toy_share(0, {});
  CHECK(complaint(checkpoint, share).empty());
  CHECK(share.equals(1));
}

TEST_CASE("a flipped bit in a tensor names the tensor", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {}, 1);
  const auto file = folder.path() / "step-00000001/rank-00000.safetensors";
  flip_bit(file, std::filesystem::file_size(file) - 1, 0);  // of the tensor written last
  ToyState share = toy_share(0, {});
  CHECK_THAT(complaint(folder.path() / "step-00000001", share),
             Contains(file.string()) && Contains("exp_avg_sq/blocks.0.convolution[0:24]") &&
                 Contains("is damaged"));
}

TEST_CASE("a file cut short, grown or missing is refused with its size", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const auto checkpoint = folder.path() / "step-00000001";
  ToyState share = toy_share(0, {});
  const auto step = static_cast<std::size_t>(dstrain::testing::one_in(5));
  for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"}) {
    const auto file = checkpoint / name;
    const std::string whole = read_file(file);
    for (std::size_t size = 0; size < whole.size(); size += step) {
      overwrite_file(file, whole.substr(0, size));
      const std::string message = complaint(checkpoint, share);
      if (message.find(file.string()) == std::string::npos || !share.is_untouched()) {
        FAIL(size << " bytes of " << name << ": " << message);
      }
    }
    overwrite_file(file, whole);
  }
  const auto file = checkpoint / "rank-00001.safetensors";
  const std::string whole = read_file(file);
  overwrite_file(file, whole.substr(0, 97));
  CHECK_THAT(complaint(checkpoint, share),
             Contains(file.string()) &&
                 Contains("has 97 bytes, expected " + std::to_string(whole.size())));
  overwrite_file(file, whole + "x");
  CHECK_THAT(complaint(checkpoint, share), Contains("expected"));
  std::filesystem::remove(file);
  CHECK_THAT(complaint(checkpoint, share), Contains(file.string()) && Contains("No such file"));
  CHECK(share.is_untouched());
}

TEST_CASE("damage in pieces that are not asked for does not stand in the way", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const auto file = folder.path() / "step-00000001/rank-00001.safetensors";
  flip_bit(file, std::filesystem::file_size(file) - 1, 0);
  ToyState first = toy_share(0, {.dp = 2});
  CHECK(complaint(folder.path() / "step-00000001", first).empty());
  CHECK(first.equals(1));
  ToyState second = toy_share(1, {.dp = 2});
  CHECK_THAT(complaint(folder.path() / "step-00000001", second), Contains("is damaged"));
}
