#include "engine/checkpoint/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Communicators carry numbers: text travels as i32 words, the last one padded with zeros.
std::int32_t words_for(std::int32_t bytes) {
  return (bytes + 3) / 4;
}

Tensor as_tensor(std::vector<std::int32_t>& words) {
  return {words.data(), DType::kI32, Shape{static_cast<std::int64_t>(words.size())}};
}

std::vector<std::int32_t> all_gather_number(std::int32_t mine, Communicator& world) {
  CallerStream stream;
  std::vector<std::int32_t> all(static_cast<std::size_t>(world.size()));
  std::vector<std::int32_t> own{mine};
  world.all_gather(as_tensor(own), as_tensor(all), Purpose::kControl, stream);
  stream.synchronize();
  return all;
}

std::int32_t size_of_text(const std::string& text) {
  check(text.size() < INT32_MAX - 4, "{} bytes are too many to send", text.size());
  return static_cast<std::int32_t>(text.size());
}

std::vector<std::int32_t> pack(const std::string& text) {
  std::vector<std::int32_t> words(static_cast<std::size_t>(words_for(size_of_text(text))));
  if (!text.empty()) {
    std::memcpy(words.data(), text.data(), text.size());
  }
  return words;
}

std::string unpack(const std::vector<std::int32_t>& words, std::int32_t bytes) {
  return {reinterpret_cast<const char*>(words.data()), static_cast<std::size_t>(bytes)};
}

constexpr std::int32_t kStorage = 1;
constexpr std::int32_t kInternal = 2;
constexpr std::int32_t kInUse = 3;
constexpr std::int32_t kGone = 4;

}  // namespace

std::string broadcast_text(const std::string& text, int root, Communicator& world) {
  const std::int32_t bytes =
      all_gather_number(size_of_text(text), world)[static_cast<std::size_t>(root)];
  std::vector<std::int32_t> words(static_cast<std::size_t>(words_for(bytes)));
  if (world.rank() == root) {
    words = pack(text);
  }
  if (!words.empty()) {
    CallerStream stream;
    world.broadcast(as_tensor(words), root, Purpose::kControl, stream);
    stream.synchronize();
  }
  return unpack(words, bytes);
}

Outcome first_failure(Outcome mine, Communicator& world) {
  const std::vector<std::int32_t> codes = all_gather_number(mine.code, world);
  const auto failed =
      std::find_if(codes.begin(), codes.end(), [](std::int32_t code) { return code != 0; });
  if (failed == codes.end()) {
    return {};
  }
  const auto rank = static_cast<int>(failed - codes.begin());
  const std::string text = broadcast_text(mine.text, rank, world);
  return {*failed, world.size() > 1 ? fmt::format("rank {}: {}", rank, text) : text};
}

void all_or_none(Communicator& world, const std::function<void()>& work) {
  Outcome mine;
  try {
    work();
  } catch (const FolderInUse& error) {
    mine = {kInUse, error.what()};
  } catch (const FolderGone& error) {
    mine = {kGone, error.what()};
  } catch (const std::runtime_error& error) {
    mine = {kStorage, error.what()};
  } catch (const std::exception& error) {
    mine = {kInternal, error.what()};
  }
  const Outcome failure = first_failure(std::move(mine), world);
  if (failure.code == kInUse) {
    throw FolderInUse(failure.text);
  }
  if (failure.code == kGone) {
    throw FolderGone(failure.text);
  }
  if (failure.code == kInternal) {
    throw InternalError(failure.text);
  }
  if (failure.code == kStorage) {
    throw StorageError(failure.text);
  }
}

std::vector<std::string> gather_texts(const std::string& text, Communicator& world) {
  const std::vector<std::int32_t> bytes = all_gather_number(size_of_text(text), world);
  std::vector<std::vector<std::int32_t>> words(bytes.size());
  std::vector<P2p> messages;
  if (world.rank() == 0) {
    for (int peer = 1; peer < world.size(); ++peer) {
      auto& buffer = words[static_cast<std::size_t>(peer)];
      buffer.resize(static_cast<std::size_t>(words_for(bytes[static_cast<std::size_t>(peer)])));
      if (!buffer.empty()) {
        messages.push_back({P2p::Kind::kReceive, peer, as_tensor(buffer)});
      }
    }
  } else {
    words[0] = pack(text);
    if (!words[0].empty()) {
      messages.push_back({P2p::Kind::kSend, 0, as_tensor(words[0])});
    }
  }
  if (world.size() > 1) {
    CallerStream stream;
    world.exchange(messages, Purpose::kControl, stream);
    stream.synchronize();
  }

  std::vector<std::string> texts;
  if (world.rank() == 0) {
    texts.push_back(text);
    for (std::size_t peer = 1; peer < bytes.size(); ++peer) {
      texts.push_back(unpack(words[peer], bytes[peer]));
    }
  }
  return texts;
}

}  // namespace dstrain
