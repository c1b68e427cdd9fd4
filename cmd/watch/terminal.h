// Terminal: a page on a terminal, by ncurses, which knows what each terminal understands. What was
// on the screen before comes back when it ends, by whatever way but SIGKILL. One at a time.
#pragma once

#include <chrono>
#include <vector>

#include "cmd/watch/watch_page.h"

namespace dstrain {

class Terminal {
 public:
  /// Takes the screen. Throws ConfigError where the terminal is of no known kind (TERM).
  Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal();

  [[nodiscard]] int columns() const;
  [[nodiscard]] int rows() const;
  /// Those that the terminal's locale can show.
  [[nodiscard]] const Signs& signs() const { return signs_; }

  void show(const std::vector<PageLine>& page);
  enum class Key { kNone, kQuit, kResized };
  /// Waits for a key or a signal, for so long.
  Key wait(std::chrono::milliseconds patience);
  /// The signal that asked to end: from ^C, kill or a closed window; 0: none did.
  [[nodiscard]] static int signal();

 private:
  Signs signs_;
  void* screen_;  ///< ncurses'
};

}  // namespace dstrain
