#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/trace/marks.h"
#include "rowband/trace/picture_layout.h"
#include "rowband/trace/text_file.h"
#include "rowband/trace/timeline.h"
#include "rowband/trace/totals.h"
#include "rowband/trace/xml_text.h"

namespace rowband {
namespace {

constexpr const char* kInk = "#1f2933";
constexpr const char* kFaintInk = "#5b6773";
constexpr const char* kGrid = "#d5dbe1";
constexpr const char* kBlock = "#f3f5f7";
constexpr int kMaxTicks = 12;
constexpr std::size_t kMaxTitleCharacters = 100;
// A 10 px sans-serif, on the wide side, and the space at both ends of a bar.
constexpr double kBarCharacterWidth = 6.0;
constexpr double kBarTextPadding = 10;
constexpr double kMinTextHeight = 14;
// Bars that touch are told apart by a line of background, where there is room for one.
constexpr double kSeparator = 0.6;
constexpr double kMinSeparatedWidth = 3;

struct Paint {
  const char* fill;
  const char* text;  // readable on the fill
};

// Hues that stay apart for the colour-blind, waiting the palest of all.
Paint paint_of(Activity activity) {
  switch (activity) {
    case Activity::kGemm:
      return {"#3b6fb5", "#ffffff"};
    case Activity::kReduce:
      return {"#7a3f98", "#ffffff"};
    case Activity::kScatter:
      return {"#e8871a", "#1f2933"};
    case Activity::kGather:
      return {"#179e77", "#ffffff"};
    case Activity::kWiden:
      return {"#e3c13a", "#1f2933"};
    case Activity::kQuantize:
      return {"#d65f9b", "#1f2933"};
    case Activity::kWait:
      return {"#c3cad1", "#1f2933"};
    case Activity::kAllReduce:
      return {"#c03830", "#ffffff"};
  }
  fail(ErrorCode::kInternal, "activity {} has no colour", static_cast<int>(activity));
}

bool is_transfer(Activity activity) {
  return activity == Activity::kScatter || activity == Activity::kGather ||
         activity == Activity::kAllReduce;
}

// A tenth of a pixel is as fine as one sees, and short to write.
double tenth(double pixels) { return std::round(pixels * 10) / 10; }

// "gemm 0.021 ms from 0.3 ms: band 1 chunk 0", "12 intervals: gemm 0.02 ms, wait 0.001 ms from 0.3
// ms"
std::string tooltip(const Mark& mark) {
  std::string text = mark.count > 1 ? fmt::format("{} intervals: ", mark.count) : "";
  const char* separator = "";
  for (int i = 0; i < kActivityCount; ++i) {
    const auto activity = static_cast<Activity>(i);
    const std::int64_t busy_ns = mark.busy_ns[static_cast<std::size_t>(i)];
    if (busy_ns == 0 && activity != mark.activity) continue;
    text += fmt::format("{}{} {}", separator, activity_name(activity), duration_text(busy_ns));
    separator = ", ";
  }
  text += fmt::format(" from {}", duration_text(mark.begin_ns));
  if (!mark.label.empty()) text += fmt::format(": {}", mark.label);
  return xml_text(text);
}

// "1 rank", "2 ranks"
std::string counted(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

class SvgPicture {
 public:
  SvgPicture(const std::vector<TimelineEvent>& events, const std::string& title)
      : title_(title),
        event_count_(events.size()),
        totals_(activity_totals(events)),
        layout_(lay_out_picture(events, static_cast<int>(totals_.size()))) {}

  std::string text() {
    open();
    heading();
    legend();
    for (const RankBlock& block : layout_.blocks) backdrop(block);
    time_grid();
    for (const RankBlock& block : layout_.blocks) {
      for (const LaneRow& row : block.rows) bars(row);
    }
    put("</svg>\n");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void open() {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"system-ui, 'Segoe UI', Roboto, Helvetica, Arial, "
        "sans-serif\" font-size=\"12\" fill=\"{2}\">\n<title>{3}</title>\n",
        kPictureWidth, tenth(layout_.height), kInk, xml_text(title_));
    // The picture brings its own background, so that it reads the same in a dark viewer.
    put("<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#ffffff\"/>\n");
  }

  void heading() {
    put("<text x=\"{}\" y=\"42\" font-size=\"18\" font-weight=\"600\">{}</text>\n", kPictureMargin,
        xml_text(shorten(title_, kMaxTitleCharacters)));
    std::size_t lanes = 0;
    for (const RankBlock& block : layout_.blocks) lanes += block.rows.size();
    put("<text x=\"{}\" y=\"63\" font-size=\"13\" fill=\"{}\">{}, {}, {} in {}. Times below are "
        "sums over all lanes.</text>\n",
        kPictureMargin, kFaintInk, counted(layout_.blocks.size(), "rank"), counted(lanes, "lane"),
        counted(event_count_, "interval"), duration_text(layout_.axis.span_ns));
  }

  void legend() {
    const bool has_gemm = totals_.front().activity == Activity::kGemm;
    const double column = (kPictureWidth - 2 * kPictureMargin) / kLegendColumns;
    for (std::size_t i = 0; i < totals_.size(); ++i) {
      const ActivityTotal& total = totals_[i];
      const double x = kPictureMargin + column * static_cast<double>(i % kLegendColumns);
      const std::size_t row = i / kLegendColumns;
      const double y = kLegendTop + kLegendPitch * static_cast<double>(row);
      put("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" rx=\"2\" fill=\"{}\"/>", tenth(x), y,
          paint_of(total.activity).fill);
      put("<text x=\"{}\" y=\"{}\"><tspan font-weight=\"600\">{}</tspan> {}", tenth(x + 21), y + 11,
          activity_name(total.activity), duration_text(total.busy_ns));
      if (has_gemm && is_transfer(total.activity) && total.busy_ns > 0) {
        put(", {:.0f}% under gemm",
            100.0 * static_cast<double>(total.under_gemm_ns) / static_cast<double>(total.busy_ns));
      }
      put("</text>\n");
    }
  }

  void backdrop(const RankBlock& block) {
    put("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{}\"/>\n",
        kPictureMargin, tenth(block.top), kPictureWidth - 2 * kPictureMargin, tenth(block.height),
        kBlock);
    put("<text x=\"{}\" y=\"{}\" font-size=\"14\" font-weight=\"600\">rank {}</text>\n",
        kPictureMargin + 12, tenth(block.top + block.height / 2 + 5), block.rank);
    for (const LaneRow& row : block.rows) lane_label(row);
  }

  void lane_label(const LaneRow& row) {
    const std::string& name = row.lane.name;
    put("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{}\">{}", tenth(layout_.axis.left - 8),
        tenth(row.top + row.height / 2 + 4), kFaintInk,
        xml_text(shorten(name, kMaxLaneCharacters)));
    if (count_characters(name) > kMaxLaneCharacters) put("<title>{}</title>", xml_text(name));
    put("</text>\n");
  }

  void time_grid() {
    const double bottom = layout_.plot_bottom;
    put("<g text-anchor=\"middle\" fill=\"{}\">\n", kFaintInk);
    for (const Tick& tick : time_ticks(layout_.axis.span_ns, kMaxTicks)) {
      const double x = tenth(layout_.axis.x(layout_.axis.begin_ns + tick.offset_ns));
      put("<path d=\"M{0} {1}V{2}\" stroke=\"{3}\"/><text x=\"{0}\" y=\"{4}\">{5}</text>\n", x,
          tenth(layout_.plot_top), tenth(bottom + 5), kGrid, tenth(bottom + 20), tick.text);
    }
    put("<text x=\"{}\" y=\"{}\">time in ms</text>\n</g>\n",
        tenth(layout_.axis.left + layout_.axis.width / 2), tenth(bottom + 42));
    put("<text x=\"{}\" y=\"{}\" fill=\"{}\">Bars above each other ran at the same time.</text>\n",
        kPictureMargin, tenth(bottom + 42), kFaintInk);
  }

  void bars(const LaneRow& row) {
    for (std::size_t track = 0; track < row.lane.tracks.size(); ++track) {
      std::vector<Mark> marks = marks_of(row.lane.tracks[track], layout_.axis);
      // Narrow bars last, on top; apart from that one group per activity.
      std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
        return std::pair(a.narrow, a.activity) < std::pair(b.narrow, b.activity);
      });
      const double top = row.top + row.track_pitch * static_cast<double>(track);
      for (auto first = marks.begin(); first != marks.end();) {
        const auto last = std::find_if(
            first, marks.end(), [&](const Mark& mark) { return mark.activity != first->activity; });
        put("<g fill=\"{}\">\n", paint_of(first->activity).fill);
        for (; first != last; ++first) bar(*first, top, row.bar_height);
        put("</g>\n");
      }
    }
  }

  void bar(const Mark& mark, double top, double height) {
    const double x = tenth(mark.x);
    const double width = tenth(mark.x + mark.width) - x;
    const double drawn = !mark.narrow && width >= kMinSeparatedWidth ? width - kSeparator : width;
    put("<path d=\"M{} {}h{}v{}h-{}z\"><title>{}</title></path>\n", x, tenth(top), tenth(drawn),
        tenth(height), tenth(drawn), tooltip(mark));
    const double text_width =
        kBarTextPadding + kBarCharacterWidth * static_cast<double>(count_characters(mark.label));
    if (mark.label.empty() || height < kMinTextHeight || text_width > width) return;
    put("<text x=\"{}\" y=\"{}\" font-size=\"10\" text-anchor=\"middle\" fill=\"{}\" "
        "pointer-events=\"none\">{}</text>\n",
        tenth(x + drawn / 2), tenth(top + height / 2 + 3.5), paint_of(mark.activity).text,
        xml_text(mark.label));
  }

  std::string title_;
  std::size_t event_count_;
  std::vector<ActivityTotal> totals_;
  PictureLayout layout_;
  std::string out_;
};

}  // namespace

void write_timeline_svg(const Timeline& timeline, const std::string& title,
                        const std::filesystem::path& path) {
  const std::vector<TimelineEvent> events = timeline.events();
  if (events.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "the timeline for '{}' has no events; record a call before writing it", path.string());
  }
  write_text_file(path, SvgPicture(events, title).text());
}

}  // namespace rowband
