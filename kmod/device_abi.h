/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What /dev/speed_bump takes besides commands. */
#ifndef SB_DEVICE_ABI_H
#define SB_DEVICE_ABI_H

#include <linux/ioctl.h>

/*
 * Switches the module on until the descriptor is closed, if nobody has: EBUSY when it is off and
 * holds targets of others, which would be live.
 */
#define SB_DEVICE_HOLD _IO('s', 0xb0)

#endif
