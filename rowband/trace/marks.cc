#include "rowband/trace/marks.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace rowband {
namespace {

constexpr double kPixel = 1.0;

class MarkBuilder {
 public:
  explicit MarkBuilder(const TimeAxis& axis) : axis_(axis) {}

  void add(const TimelineEvent& event) {
    const double x = axis_.x(event.begin_ns);
    const double width = axis_.x(event.end_ns) - x;
    if (width >= kPixel) {
      close_pixel();
      marks_.push_back(one_interval(event, x, width));
      owed_.fill(0);
      return;
    }
    // What has no width at the very end of the axis goes to the last pixel, not beyond it.
    const double pixel =
        std::min(std::floor(x + width / 2), std::ceil(axis_.left + axis_.width) - kPixel);
    if (pixel_ && pixel_->x != pixel) close_pixel();
    if (pixel_) {
      merge(*pixel_, one_interval(event, pixel, kPixel));
    } else {
      pixel_ = one_interval(event, pixel, kPixel);
      pixel_->narrow = true;
    }
    // An interval of 0 ns counts too, or a pixel of such intervals would have no activity.
    weight_[index(event.activity)] += std::max<std::int64_t>(event.end_ns - event.begin_ns, 1);
  }

  std::vector<Mark> finish() {
    close_pixel();
    return std::move(marks_);
  }

 private:
  using PerActivity = std::array<std::int64_t, kActivityCount>;

  static std::size_t index(Activity activity) { return static_cast<std::size_t>(activity); }

  Mark one_interval(const TimelineEvent& event, double x, double width) const {
    Mark mark{x, width, false, event.activity, event.begin_ns - axis_.begin_ns, 1, {}, event.label};
    mark.busy_ns[index(event.activity)] = event.end_ns - event.begin_ns;
    return mark;
  }

  static void merge(Mark& mark, const Mark& next) {
    mark.count += next.count;
    for (std::size_t i = 0; i < mark.busy_ns.size(); ++i) mark.busy_ns[i] += next.busy_ns[i];
    mark.label.clear();
  }

  // The activity of the open pixel: the one, of those in it, that is owed most time when what the
  // pixels before it left out is counted in.
  Activity settle_pixel() {
    std::int64_t total = 0;
    std::size_t chosen = kActivityCount;
    for (std::size_t i = 0; i < weight_.size(); ++i) {
      if (weight_[i] == 0) continue;
      total += weight_[i];
      owed_[i] += weight_[i];
      if (chosen == kActivityCount || owed_[i] > owed_[chosen]) chosen = i;
    }
    owed_[chosen] -= total;
    weight_.fill(0);
    return static_cast<Activity>(chosen);
  }

  void close_pixel() {
    if (!pixel_) return;
    const bool follows = !marks_.empty() && marks_.back().narrow &&
                         marks_.back().x + marks_.back().width == pixel_->x;
    if (!follows) owed_.fill(0);
    pixel_->activity = settle_pixel();
    if (follows && marks_.back().activity == pixel_->activity) {
      merge(marks_.back(), *pixel_);
      marks_.back().width += kPixel;
    } else {
      marks_.push_back(*std::move(pixel_));
    }
    pixel_.reset();
  }

  const TimeAxis& axis_;
  std::vector<Mark> marks_;
  std::optional<Mark> pixel_;  // open: later intervals may join it
  PerActivity weight_{};       // of the open pixel
  PerActivity owed_{};         // time that the run of narrow bars so far has not shown
};

}  // namespace

std::vector<Mark> marks_of(const Track& track, const TimeAxis& axis) {
  MarkBuilder builder(axis);
  for (const TimelineEvent& event : track) builder.add(event);
  return builder.finish();
}

}  // namespace rowband
