/** Every row and panel is somebody's, once. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { ROW_BLOCK } from '../../kernels/wasm/kernel_constants.ts';
import { productTasks } from '../../kernels/wasm/task_split.ts';

test('the tasks of a product cover every row and panel once, in blocks that the kernels take', () => {
  for (const numRows of [0, 1, 2, 7, 12, 95, 96, 97, 200, 511, 2_048]) {
    for (const inner of [8, 576, 2_048, 8_192, 28_672]) {
      for (const numPanels of [1, 3, 4, 5, 72, 6_144]) {
        for (const numThreads of [1, 2, 3, 64]) {
          const tasks = productTasks(numRows, inner, numPanels, numThreads);
          const { rowsPerTask, panelsPerTask, numPanelTasks, numTasks } = tasks;
          assert(rowsPerTask <= ROW_BLOCK);
          const numRowTasks = numTasks / numPanelTasks;
          const what = JSON.stringify({ inner, numPanels, numThreads, ...tasks });
          assert(Number.isInteger(numRowTasks), what);
          assert(numRowTasks * rowsPerTask >= numRows && (numRowTasks - 1) * rowsPerTask < Math.max(1, numRows), what);
          assert(numPanelTasks * panelsPerTask >= numPanels && (numPanelTasks - 1) * panelsPerTask < numPanels, what);
        }
      }
    }
  }
});
