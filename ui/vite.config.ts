import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

import { licenses } from "./licenses.ts";

// Every address is relative: nsqadmin tells the document by a <base> element where it is served.
// `npm run dev` asks the nsqadmin at NSQADMIN, by default the one of `nsqx up`.
const nsqadmin = process.env["NSQADMIN"] ?? "http://127.0.0.1:4171";

const devBase: Plugin = {
  name: "dev-base",
  apply: "serve",
  transformIndexHtml: (html) => html.replace("<head>", '<head><base href="/">'),
};

export default defineConfig({
  base: "./",
  plugins: [svelte(), licenses(), devBase],
  build: {
    outDir: "../src/nsqx/nsqadmin/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
  },
  server: { proxy: { "/api": nsqadmin, "/config": nsqadmin, "/ping": nsqadmin } },
});
