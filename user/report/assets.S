/* SPDX-License-Identifier: MIT */
/* What the HTML reports carry, as it stands in the files. */
        .section .rodata
        .global sb_report_template, sb_report_template_end
        .global sb_report_chart, sb_report_chart_end
sb_report_template:
        .incbin SB_REPORT_TEMPLATE
sb_report_template_end:
sb_report_chart:
        .incbin SB_REPORT_CHART
sb_report_chart_end:
        .global sb_discovery_template, sb_discovery_template_end
sb_discovery_template:
        .incbin SB_DISCOVERY_TEMPLATE
sb_discovery_template_end:
        .section .note.GNU-stack,"",%progbits
