/** The dashboard: begins here. Bundled by config/build.js into app.js. */
import { render } from 'preact';
import 'uplot/dist/uPlot.min.css';
import './app.css';
import { host, store } from './page.ts';
import { followAddress } from './route.ts';
import { Shell } from './shell.tsx';
import { Stream } from './stream.ts';

followAddress();
new Stream(store, host).start();
const root = document.getElementById('app');
if (root) render(<Shell />, root);
