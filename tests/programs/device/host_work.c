/* SPDX-License-Identifier: MIT */
/* What the host of device_steps.py does in native code (mode=mixed). */
#include <stdint.h>
#include <time.h>

/* Takes so long by the clock: what the machine does besides is within it, as far as it goes. */
void host_work(uint64_t ns)
{
	struct timespec time;
	uint64_t begin = 0, now;

	do {
		clock_gettime(CLOCK_MONOTONIC, &time);
		now = (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
		if (!begin)
			begin = now;
	} while (now - begin < ns);
}
