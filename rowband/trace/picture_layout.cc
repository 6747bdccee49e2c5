#include "rowband/trace/picture_layout.h"

#include <algorithm>
#include <utility>

#include "rowband/trace/xml_text.h"

namespace rowband {
namespace {

constexpr double kRankLabelWidth = 80;
constexpr double kLaneCharacterWidth = 6.8;  // of a 12 px sans-serif, on the wide side
constexpr double kLaneLabelGap = 10;
constexpr double kRightPadding = 14;

constexpr double kLaneBarHeight = 22;
constexpr double kTrackBarHeight = 11;  // when a lane has several tracks
constexpr double kTrackGap = 1;
constexpr double kLaneGap = 4;
constexpr double kBlockPadding = 8;
constexpr double kBlockGap = 10;
constexpr double kLegendGap = 12;
constexpr double kAxisHeight = 62;

double axis_left(const std::vector<Lane>& lanes) {
  std::size_t characters = 0;
  for (const Lane& lane : lanes) characters = std::max(characters, count_characters(lane.name));
  return kPictureMargin + kRankLabelWidth + kLaneLabelGap +
         kLaneCharacterWidth * static_cast<double>(std::min(characters, kMaxLaneCharacters));
}

LaneRow row_at(Lane lane, double top) {
  const std::size_t tracks = lane.tracks.size();
  const double bar_height = tracks == 1 ? kLaneBarHeight : kTrackBarHeight;
  const double pitch = bar_height + kTrackGap;
  const double height = static_cast<double>(tracks) * pitch - kTrackGap;
  return {std::move(lane), top, height, pitch, bar_height};
}

}  // namespace

PictureLayout lay_out_picture(const std::vector<TimelineEvent>& events, int legend_entries) {
  std::vector<Lane> lanes = arrange_lanes(events);
  PictureLayout layout;
  const double left = axis_left(lanes);
  layout.axis = fit_axis(events, left, kPictureWidth - kPictureMargin - kRightPadding - left);

  const int legend_rows = (legend_entries + kLegendColumns - 1) / kLegendColumns;
  layout.plot_top = kLegendTop + legend_rows * kLegendPitch + kLegendGap;
  double y = layout.plot_top;
  for (Lane& lane : lanes) {
    if (layout.blocks.empty() || layout.blocks.back().rank != lane.rank) {
      if (!layout.blocks.empty()) y += kBlockGap;
      layout.blocks.push_back({lane.rank, y, 0, {}});
      y += kBlockPadding;
    } else {
      y += kLaneGap - kBlockPadding;
    }
    RankBlock& block = layout.blocks.back();
    block.rows.push_back(row_at(std::move(lane), y));
    y += block.rows.back().height + kBlockPadding;
    block.height = y - block.top;
  }
  layout.plot_bottom = y;
  layout.height = y + kAxisHeight;
  return layout;
}

}  // namespace rowband
