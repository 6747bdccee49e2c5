// Where everything of the picture stands, in pixels.
#pragma once

#include <string>
#include <vector>

#include "rowband/trace/lanes.h"
#include "rowband/trace/time_axis.h"

namespace rowband {

inline constexpr double kPictureWidth = 1200;
inline constexpr double kPictureMargin = 28;
inline constexpr int kLegendColumns = 4;
inline constexpr double kLegendPitch = 22;  // from one legend row to the next
inline constexpr double kLegendTop = 78;
// Longer names are cut to this many characters; the tooltip has them whole.
inline constexpr std::size_t kMaxLaneCharacters = 24;

// One lane: `track_count` bars of track_height above each other, from `top`.
struct LaneRow {
  Lane lane;
  double top = 0;
  double height = 0;
  double track_pitch = 0;
  double bar_height = 0;
};

// The rows of one rank, on one background.
struct RankBlock {
  int rank = 0;
  double top = 0;
  double height = 0;
  std::vector<LaneRow> rows;
};

struct PictureLayout {
  TimeAxis axis;
  double plot_top = 0;
  double plot_bottom = 0;
  double height = 0;  // of the whole picture
  std::vector<RankBlock> blocks;
};

// `events` as Timeline::events() returns them, at least one.
PictureLayout lay_out_picture(const std::vector<TimelineEvent>& events, int legend_entries);

}  // namespace rowband
