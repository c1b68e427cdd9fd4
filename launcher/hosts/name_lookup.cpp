#include "launcher/hosts/name_lookup.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/network_address.h"

namespace dstrain::launcher {

/// Written by the thread before it signals, read by the loop after that.
struct NameLookup::Answer {
  FileDescriptor signal;
  Addresses addresses{};
};

namespace {

Addresses look_up(const std::string& host, std::uint16_t port, int family, int flags) {
  AddressLookup found = look_up_addresses(host.c_str(), port, flags, family);
  Addresses addresses{.error = std::move(found.error)};
  for (const addrinfo* entry = found.list.get(); entry != nullptr; entry = entry->ai_next) {
    asio::ip::tcp::endpoint endpoint;
    endpoint.resize(entry->ai_addrlen);
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    addresses.endpoints.push_back(endpoint);
  }
  return addresses;
}

}  // namespace

NameLookup::NameLookup(asio::io_context& loop,
                       const std::string& host,
                       std::uint16_t port,
                       int family,
                       std::function<void(Addresses)> done)
    : answer_(std::make_shared<Answer>()), ready_(loop), done_(std::move(done)) {
  answer_->signal = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  const int own_end = dup(answer_->signal.get());
  if (own_end < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  ready_.assign(own_end);
  ready_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
                      if (!alive.expired() && !error) take_answer();
                    });
  const auto say_ready = [](const Answer& answer) { eventfd_write(answer.signal.get(), 1); };
  // An address needs nobody to be asked.
  answer_->addresses = look_up(host, port, family, AI_NUMERICHOST);
  if (!answer_->addresses.endpoints.empty()) {
    say_ready(*answer_);
    return;
  }
  std::thread([answer = answer_, host, port, family, say_ready] {
    answer->addresses = look_up(host, port, family, AI_ADDRCONFIG);
    say_ready(*answer);
  }).detach();
}

NameLookup::~NameLookup() = default;

void NameLookup::take_answer() {
  eventfd_t count = 0;
  eventfd_read(ready_.native_handle(), &count);  // orders the thread's writes before our reads
  const auto done = std::exchange(done_, nullptr);
  done(std::move(answer_->addresses));
}

}  // namespace dstrain::launcher
