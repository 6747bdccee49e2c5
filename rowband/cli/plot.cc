#include "rowband/cli/plot.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string_view>
#include <system_error>

#include "rowband/base/fail.h"
#include "rowband/trace/text_file.h"
#include "rowband/trace/xml_text.h"

namespace rowband {
namespace {

constexpr std::array kColours = {"#3b6fb5", "#e8871a", "#179e77", "#7a3f98",
                                 "#c03830", "#d65f9b", "#8a6d00", "#5b6773"};

void check(const PlotSeries& series, bool log2_x) {
  if (series.x.empty() || series.x.size() != series.y.size()) {
    fail(ErrorCode::kInvalidArgument,
         "plot series '{}' has {} x and {} y values; it needs as many of both, at least one",
         series.name, series.x.size(), series.y.size());
  }
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const double x = series.x[i];
    if (!std::isfinite(x) || !std::isfinite(series.y[i])) {
      fail(ErrorCode::kInvalidArgument,
           "point {} of plot series '{}' is ({}, {}); both must be finite", i, series.name, x,
           series.y[i]);
    }
    if (log2_x && x <= 0) {
      fail(ErrorCode::kInvalidArgument,
           "point {} of plot series '{}' is at x = {}; a logarithmic axis needs x > 0", i,
           series.name, x);
    }
  }
}

// A string of gnuplot's: nothing but the quote is special in it, and it ends with its line.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : xml_characters(text)) {
    if (c == '\'') out += '\'';
    out += c == '\n' || c == '\t' ? ' ' : c;
  }
  return out + "'";
}

template <typename Predicate>
bool all_points(const std::vector<PlotSeries>& series, std::vector<double> PlotSeries::*axis,
                Predicate predicate) {
  return std::all_of(series.begin(), series.end(), [&](const PlotSeries& s) {
    return std::all_of((s.*axis).begin(), (s.*axis).end(), predicate);
  });
}

std::string script(const std::string& title, const std::string& x_label, const std::string& y_label,
                   const std::vector<PlotSeries>& series, bool log2_x) {
  std::string out;
  const auto line = [&out]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
    out += '\n';
  };
  line("set encoding utf8");
  line("set terminal svg size 960,540 font 'sans-serif,14' background rgb '#ffffff' noenhanced");
  line("set title {} font ',18' textcolor rgb '#1f2933'", quoted(title));
  line("set xlabel {} offset 0, 0.4 textcolor rgb '#1f2933'", quoted(x_label));
  line("set ylabel {} textcolor rgb '#1f2933'", quoted(y_label));
  line("set key below center horizontal Left reverse textcolor rgb '#1f2933'");
  line("set border 3 linecolor rgb '#5b6773'");
  line("set tics nomirror textcolor rgb '#5b6773'");
  line("set grid linetype 1 linecolor rgb '#d5dbe1'");
  line("set offsets graph 0.02, graph 0.02, graph 0.05, 0");
  if (all_points(series, &PlotSeries::y, [](double y) { return y >= 0; })) {
    line("set yrange [0:*]");
  }
  if (log2_x) {
    line("set logscale x 2");
    // Row counts in full: "16384", not "16384.0" or "1.6e+04".
    if (all_points(series, &PlotSeries::x, [](double x) { return x >= 1; })) {
      line("set format x '%.0f'");
    }
  }
  for (std::size_t i = 0; i < series.size(); ++i) {
    line("$series{} << END", i);
    for (std::size_t k = 0; k < series[i].x.size(); ++k) {
      line("{} {}", series[i].x[k], series[i].y[k]);
    }
    line("END");
  }
  out += "plot ";
  for (std::size_t i = 0; i < series.size(); ++i) {
    fmt::format_to(std::back_inserter(out),
                   "{}$series{} using 1:2 with linespoints linewidth 2.5 pointtype 7 pointsize 0.6 "
                   "linecolor rgb '{}' title {}",
                   i == 0 ? "" : ", ", i, kColours[i % kColours.size()], quoted(series[i].name));
  }
  return out + "\n";
}

// An unnamed file that a child process reads or writes: unlike pipes, three of them cannot block
// each other.
class ScratchFile {
 public:
  ScratchFile() : file_(std::tmpfile(), &std::fclose) {
    if (!file_) fail_with(errno, "create");
  }

  int descriptor() const { return ::fileno(file_.get()); }

  void fill(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
        std::fflush(file_.get()) != 0) {
      fail_with(errno, "write");
    }
    std::rewind(file_.get());
  }

  std::string content() {
    std::rewind(file_.get());
    std::string text;
    std::array<char, 4096> buffer;
    while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), file_.get())) {
      text.append(buffer.data(), got);
    }
    if (std::ferror(file_.get()) != 0) fail_with(errno, "read");
    return text;
  }

 private:
  [[noreturn]] static void fail_with(int error, const char* doing) {
    fail(ErrorCode::kIo, "cannot {} a temporary file for gnuplot: {}", doing,
         std::generic_category().message(error));
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// Starts gnuplot without anyone's start-up file; returns its process id.
pid_t start_gnuplot(const ScratchFile& in, const ScratchFile& out, const ScratchFile& errors) {
  posix_spawn_file_actions_t actions;
  if (const int error = posix_spawn_file_actions_init(&actions); error != 0) {
    fail(ErrorCode::kOutOfMemory, "cannot start gnuplot: {}",
         std::generic_category().message(error));
  }
  const std::unique_ptr<posix_spawn_file_actions_t, int (*)(posix_spawn_file_actions_t*)> guard(
      &actions, &posix_spawn_file_actions_destroy);
  pid_t process = 0;
  int error = posix_spawn_file_actions_adddup2(&actions, in.descriptor(), STDIN_FILENO);
  if (error == 0) {
    error = posix_spawn_file_actions_adddup2(&actions, out.descriptor(), STDOUT_FILENO);
  }
  if (error == 0) {
    error = posix_spawn_file_actions_adddup2(&actions, errors.descriptor(), STDERR_FILENO);
  }
  if (error == 0) {
    std::string name = "gnuplot";
    std::string defaults = "-d";
    char* arguments[] = {name.data(), defaults.data(), nullptr};
    error = posix_spawnp(&process, "gnuplot", &actions, nullptr, arguments, environ);
  }
  if (error == ENOENT) {
    fail(ErrorCode::kUnavailable,
         "plots are drawn by the program gnuplot, which is not on the PATH; install it (Debian "
         "package gnuplot-nox)");
  }
  if (error != 0) {
    fail(ErrorCode::kUnavailable, "cannot start gnuplot: {}",
         std::generic_category().message(error));
  }
  return process;
}

int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    if (errno == EINTR) continue;
    fail(ErrorCode::kUnavailable, "cannot learn how gnuplot ended: {}",
         std::generic_category().message(errno));
  }
  return status;
}

std::string run_gnuplot(std::string_view commands) {
  ScratchFile in;
  ScratchFile out;
  ScratchFile errors;
  in.fill(commands);
  const int status = wait_for(start_gnuplot(in, out, errors));
  if (WIFSIGNALED(status)) {
    fail(ErrorCode::kUnavailable, "gnuplot was ended by signal {}: {}", WTERMSIG(status),
         errors.content());
  }
  if (WEXITSTATUS(status) != 0) {
    fail(ErrorCode::kUnavailable, "gnuplot failed with status {}: {}", WEXITSTATUS(status),
         errors.content());
  }
  std::string picture = out.content();
  if (picture.find("</svg>") == std::string::npos) {
    fail(ErrorCode::kUnavailable, "gnuplot ended well, but wrote no whole picture ({} bytes): {}",
         picture.size(), errors.content());
  }
  return picture;
}

}  // namespace

void write_plot_svg(const std::filesystem::path& path, const std::string& title,
                    const std::string& x_label, const std::string& y_label,
                    const std::vector<PlotSeries>& series, bool log2_x) {
  if (series.empty()) {
    fail(ErrorCode::kInvalidArgument, "the plot '{}' has no series; it needs at least one",
         path.string());
  }
  for (const PlotSeries& one : series) check(one, log2_x);
  write_text_file(path, run_gnuplot(script(title, x_label, y_label, series, log2_x)));
}

}  // namespace rowband
