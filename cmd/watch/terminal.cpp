#define NCURSES_NOMACROS 1
#include "cmd/watch/terminal.h"

#include <array>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <curses.h>
#include <fmt/format.h>
#include <langinfo.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr short kGreen = 1;
constexpr short kYellow = 2;
constexpr short kRed = 3;
constexpr short kCyan = 4;
constexpr short kMagenta = 5;
constexpr short kBlue = 6;

volatile std::sig_atomic_t asked_to_end = 0;

constexpr std::array kEndings = {SIGINT, SIGTERM, SIGHUP};

void take_note(int number) {
  asked_to_end = number;
}

chtype attributes_of(Style style) {
  const auto colour = [](short pair) {
    return has_colors() ? static_cast<chtype>(COLOR_PAIR(pair)) : A_NORMAL;
  };
  switch (style) {
    case Style::kPlain:
      return A_NORMAL;
    case Style::kBold:
      return A_BOLD;
    case Style::kDim:
      return A_DIM;
    case Style::kGood:
      return colour(kGreen) | A_BOLD;
    case Style::kWarning:
      return colour(kYellow);
    case Style::kBad:
      return colour(kRed) | A_BOLD;
    case Style::kFirst:
      return colour(kCyan);
    case Style::kSecond:
      return colour(kMagenta);
    case Style::kThird:
      return colour(kBlue);
  }
  return A_NORMAL;
}

bool shows_unicode() {
  std::setlocale(LC_CTYPE, "");
  return std::string(nl_langinfo(CODESET)) == "UTF-8";
}

}  // namespace

Terminal::Terminal()
    : signs_(shows_unicode() ? kUnicode : kAscii), screen_(newterm(nullptr, stdout, stdin)) {
  if (screen_ == nullptr) {
    const char* const kind = std::getenv("TERM");
    throw ConfigError(fmt::format(
        "TERM is {}, a terminal that nothing here knows how to draw on; set it to what your "
        "terminal is, or to xterm, or pipe the command for plain lines",
        kind == nullptr ? "not set" : fmt::format("\"{}\"", kind)));
  }
  for (const int ending : kEndings) {
    struct sigaction action {};  // without SA_RESTART: a wait for a key ends at once
    action.sa_handler = take_note;
    sigaction(ending, &action, nullptr);
  }
  cbreak();
  noecho();
  keypad(stdscr, true);
  curs_set(0);
  set_escdelay(25);
  if (has_colors() && std::getenv("NO_COLOR") == nullptr) {
    start_color();
    use_default_colors();
    constexpr short kDefault = -1;
    init_pair(kGreen, COLOR_GREEN, kDefault);
    init_pair(kYellow, COLOR_YELLOW, kDefault);
    init_pair(kRed, COLOR_RED, kDefault);
    init_pair(kCyan, COLOR_CYAN, kDefault);
    init_pair(kMagenta, COLOR_MAGENTA, kDefault);
    init_pair(kBlue, COLOR_BLUE, kDefault);
  }
}

Terminal::~Terminal() {
  endwin();
  delscreen(static_cast<SCREEN*>(screen_));
}

int Terminal::signal() {
  return asked_to_end;
}

int Terminal::columns() const {
  return getmaxx(stdscr);
}

int Terminal::rows() const {
  return getmaxy(stdscr);
}

void Terminal::show(const std::vector<PageLine>& page) {
  werase(stdscr);
  int row = 0;
  for (const PageLine& line : page) {
    wmove(stdscr, row++, 0);
    for (const StyledText& part : line) {
      const chtype attributes = attributes_of(part.style);
      wattron(stdscr, static_cast<int>(attributes));
      waddstr(stdscr, part.text.c_str());
      wattroff(stdscr, static_cast<int>(attributes));
    }
  }
  wrefresh(stdscr);
}

Terminal::Key Terminal::wait(std::chrono::milliseconds patience) {
  constexpr int kEscape = 27;
  wtimeout(stdscr, static_cast<int>(patience.count()));
  switch (wgetch(stdscr)) {
    case 'q':
    case 'Q':
    case kEscape:
      return Key::kQuit;
    case KEY_RESIZE:
      return Key::kResized;
    default:
      return Key::kNone;
  }
}

}  // namespace dstrain
