// The style of the report's page, for html.cc; a private header. Colours have a contrast of at
// least 4.5 to their ground, light and dark.
#pragma once

namespace muster {

inline constexpr auto kReportStyle = R"(<style>
:root { color-scheme: light dark; --back: #f6f7f8; --card: #ffffff; --front: #1b2127; --soft: #56616c; --line: #dfe4e8;
  --grid: #eceff2; --good: #1a7446; --bad: #b3261e; --warn: #8a5300; --idle: #5b6770;
  --s1: #1f66b5; --s2: #b8500b; --s3: #1a7446; --s4: #7a3db3; --s5: #7c8791; --tip: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --back: #101418; --card: #181d22; --front: #e7ebef; --soft: #9fabb6; --line: #2c343c; --grid: #242b32;
    --good: #52c188; --bad: #ff8a80; --warn: #e8ac54; --idle: #9fabb6;
    --s1: #6cabf0; --s2: #f2985a; --s3: #58c08d; --s4: #c198ec; --s5: #7f8b96; --tip: #222930; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--front); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1344px; margin: 0 auto; padding: 28px 24px 56px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 4px; } h3 { font-size: 14px; margin: 0; overflow-wrap: anywhere; }
p { margin: 0 0 10px; } .soft { color: var(--soft); } .small { font-size: 13px; }
header { margin-bottom: 20px; } header .line { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 14px; }
header p { margin: 4px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.badge { font-size: 13px; font-weight: 600; padding: 2px 11px; border-radius: 99px; border: 1.5px solid currentColor; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); } .idle { color: var(--idle); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); gap: 12px; margin: 0 0 18px; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 11px 15px 12px; min-width: 0; } .tile .label { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.tile .value { font-size: 21px; font-weight: 650; line-height: 1.3; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.tile .note { color: var(--soft); font-size: 12.5px; overflow-wrap: anywhere; }
section { padding: 18px 20px 20px; margin: 0 0 18px; min-width: 0; } section > p.soft { max-width: 85ch; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 22px 26px; margin-top: 12px; }
figure { margin: 0; min-width: 0; } figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline; gap: 0 10px; margin-bottom: 4px; }
figcaption .now { color: var(--soft); font-size: 13px; white-space: nowrap; font-variant-numeric: tabular-nums; }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; } .chart text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.chart .grid { stroke: var(--grid); } .chart .axis { stroke: var(--line); } .chart .end { text-anchor: end; } .chart .mid { text-anchor: middle; }
.chart .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; } .chart .band { opacity: 0.16; stroke: none; }
.chart .tip { visibility: hidden; pointer-events: none; } .chart .col:hover .tip { visibility: visible; }
.chart .col > rect { fill: transparent; } .chart .tip .box { fill: var(--tip); stroke: var(--line); } .chart .tip path { stroke: var(--soft); }
.chart .tip text { fill: var(--front); font-variant-numeric: tabular-nums; }
.k1 { stroke: var(--s1); } .k2 { stroke: var(--s2); } .k3 { stroke: var(--s3); } .k4 { stroke: var(--s4); }
.k2.curve { stroke-dasharray: 6 3; } .k3.curve { stroke-dasharray: 2 3; } .k4.curve { stroke-dasharray: 8 3 2 3; }
.f1 { fill: var(--s1); background: var(--s1); } .f2 { fill: var(--s2); background: var(--s2); } .f3 { fill: var(--s3); background: var(--s3); }
.f4 { fill: var(--s4); background: var(--s4); } .f5 { fill: var(--s5); background: var(--s5); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 6px 0 8px; padding: 0; font-size: 13px; color: var(--soft); }
.legend .key { display: inline-block; width: 13px; height: 13px; border-radius: 3px; margin-right: 7px; vertical-align: -2px; }
.legend .dash { width: 22px; height: 8px; margin-right: 6px; display: inline-block; vertical-align: 1px; }
.scroll { width: fit-content; max-width: 100%; overflow: auto; max-height: 460px; border: 1px solid var(--line); border-radius: 8px; margin-top: 10px; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; } th { position: sticky; top: 0; background: var(--card); color: var(--soft); font-weight: 600; }
td.num, th.num { text-align: right; } td.num { white-space: nowrap; } td { overflow-wrap: break-word; } td:last-child:not(.num) { min-width: 170px; } tbody tr:hover td { background: var(--grid); }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
pre, code { font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 10px 0 0; padding: 12px 14px; background: var(--back); border: 1px solid var(--line); border-radius: 8px; overflow: auto; max-height: 520px; white-space: pre-wrap; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(110px, max-content) 1fr; gap: 6px 20px; margin: 10px 0 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.notice { border-left: 4px solid var(--warn); padding: 8px 14px; background: var(--card); margin: 0 0 14px; border-radius: 4px; overflow-wrap: anywhere; }
.cause { font-size: 16px; font-weight: 600; overflow-wrap: anywhere; margin: 8px 0 2px; }
.rows { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 7px 14px; align-items: center; margin-top: 10px; font-size: 13.5px; }
.rows .name { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; max-width: 34vw; } .rows .value { color: var(--soft); }
.bar { display: flex; height: 20px; border-radius: 4px; overflow: hidden; background: var(--grid); } .bar > span { height: 100%; display: block; }
.bar > span + span { border-left: 1px solid var(--card); }
.track { position: relative; height: 24px; background: var(--grid); border-radius: 4px; }
.track > span { position: absolute; top: 3px; bottom: 3px; border-radius: 3px; min-width: 3px; }
.track .done { background: var(--good); } .track .failed { background: repeating-linear-gradient(45deg, var(--bad) 0 6px, transparent 6px 8px) var(--bad); background-color: transparent; background-image: repeating-linear-gradient(45deg, var(--bad) 0 6px, color-mix(in srgb, var(--bad) 70%, transparent) 6px 10px); }
.track .stopped, .track .killed, .track .unknown { background: var(--idle); } .track .running { background: var(--s1); }
.calls > span { min-width: 2px; border-radius: 2px; } .legend .failed { background: var(--bad); }
.scale { position: relative; height: 18px; color: var(--soft); font-size: 12px; } .scale span { position: absolute; white-space: nowrap; border-left: 1px solid var(--line); padding-left: 4px; }
.says { grid-column: 2; margin-top: -4px; color: var(--soft); overflow-wrap: anywhere; }
.picture { background: #ffffff; border: 1px solid var(--line); border-radius: 8px; overflow: auto; margin-top: 10px; width: fit-content; max-width: 100%; }
.picture svg { display: block; } footer { color: var(--soft); font-size: 13px; }
@media (max-width: 560px) { main { padding: 18px 12px 40px; } section { padding: 14px 13px 16px; } h1 { font-size: 21px; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 9px; } .tile .value { font-size: 18px; } th, td { padding: 5px 8px; } }
@media print { body { background: none; } section, .tile { break-inside: avoid; } .scroll, pre { max-height: none; } }
</style>
)";

}  // namespace muster
